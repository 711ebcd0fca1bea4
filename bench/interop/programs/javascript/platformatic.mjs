// @platformatic/kafka.
import { Admin, Consumer, Producer, stringDeserializers, stringSerializers } from '@platformatic/kafka'
import { newName, numbers, run, same, soon } from './scenario.mjs'

const settings = (address) => ({ clientId: 'interop', bootstrapBrokers: [address] })

/** Calls it with the client, and closes that; a consumer also while it reads. */
async function having (client, use, ...closing) {
  try {
    return await use(client)
  } finally {
    await client.close(...closing)
  }
}

const admin = (address, use) => having(new Admin(settings(address)), use)

async function newTopic (address, partitions = 1) {
  const topic = newName('topic')
  await admin(address, (one) => one.createTopics({ topics: [topic], partitions, replicas: 1 }))
  return topic
}

const producer = (address, more = {}) => new Producer({
  ...settings(address), serializers: stringSerializers, acks: -1, ...more
})

const messages = (topic, values) => values.map((value) => ({ topic, value, partition: 0 }))

const send = (address, topic, count, more) => having(
  producer(address, more), (one) => one.send({ messages: messages(topic, numbers(0, count)) })
)

/** The values that a member of the group gets, so many of them, committed behind the last. */
const take = (address, topic, groupId, count, more = {}) => having(
  new Consumer({ ...settings(address), groupId, deserializers: stringDeserializers, ...more }),
  async (consumer) => {
    const stream = await consumer.consume({
      topics: [topic], autocommit: false, mode: 'committed', fallbackMode: 'earliest', maxWaitTime: 200
    })
    const found = []
    await soon((async () => {
      for await (const message of stream) {
        if (found.push(message.value) === count) {
          await message.commit()
          break
        }
      }
    })(), `${count} messages`)
    return found
  },
  true
)

const readAll = async (address, topic, expected, more) =>
  same(await take(address, topic, newName('group'), expected.length, more), expected, 'messages')

async function roundTrip (address) {
  for (const compression of ['none', 'gzip', 'snappy', 'lz4', 'zstd']) {
    if (compression === 'zstd' && Number(process.versions.node.split('.')[0]) < 22) continue // not in this Node.js
    const topic = await newTopic(address)
    await send(address, topic, 100, { compression })
    await readAll(address, topic, numbers(0, 100))
  }
}

async function idempotentProducer (address) {
  const topic = await newTopic(address)
  await send(address, topic, 1_000, { idempotent: true })
  await readAll(address, topic, numbers(0, 1_000))
}

async function consumerGroup (address, more) {
  const topic = await newTopic(address)
  await send(address, topic, 10)
  const group = newName('group')
  same(await take(address, topic, group, 4, more), numbers(0, 4), 'the first messages')
  same(await take(address, topic, group, 6, more), numbers(4, 10), 'those behind the commit')
}

async function transactions (address) {
  const topic = await newTopic(address)
  await having(producer(address, { idempotent: true, transactionalId: newName('transaction') }), async (one) => {
    for (const value of numbers(0, 6)) {
      const transaction = await one.beginTransaction()
      await transaction.send({ messages: messages(topic, [value]) })
      await (Number(value) % 2 === 0 ? transaction.abort() : transaction.commit())
    }
  })
  await readAll(address, topic, numbers(0, 6), { isolationLevel: 0 }) // it shows aborted ones at either level
}

await run({
  'round trip': roundTrip,
  'idempotent producer': idempotentProducer,
  'consumer group': (address) => consumerGroup(address, {}),
  'new group protocol': (address) => consumerGroup(address, { groupProtocol: 'consumer' }),
  transactions
})
