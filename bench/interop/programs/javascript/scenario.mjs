// What the programs in JavaScript share: names, waits, and how a scenario ends (as in scenario.py).
import { randomUUID } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'

export const MAX_MS = 40_000
const NOT_OFFERED = 3

export const newName = (kind) => `interop-${kind}-${randomUUID().slice(0, 8)}`

export const numbers = (first, end) => Array.from({ length: end - first }, (_, index) => `${first + index}`)

/** Throws an error that says both, unless they are equal. */
export function same (found, expected, what) {
  if (!isDeepStrictEqual(found, expected)) {
    const [one, other] = [found, expected].map((value) => JSON.stringify(value).slice(0, 200))
    throw new Error(`${what}: ${one} instead of ${other}`)
  }
}

/** Resolves as the promise does; rejects when that takes too long. */
export async function soon (promise, what) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited ${MAX_MS / 1_000} s in vain for ${what}`)), MAX_MS)
  })
  try {
    return await Promise.race([promise, late])
  } finally {
    clearTimeout(timer)
  }
}

/** The program: plays the scenario that is named, and ends the process. */
export async function run (plays) {
  const [name, address] = process.argv.slice(2)
  if (!(name in plays)) process.exit(NOT_OFFERED)
  try {
    await plays[name](address)
  } catch (error) {
    console.log(String(error).replaceAll('\n', ' '))
    process.exit(1)
  }
  process.exit(0)
}
