// KafkaJS.
import kafkajs from 'kafkajs'
import { newName, numbers, run, same, soon } from './scenario.mjs'

const { CompressionTypes, Kafka, logLevel } = kafkajs

const kafka = (address) => new Kafka({ clientId: 'interop', brokers: [address], logLevel: logLevel.NOTHING })

/** Calls it with a connected producer, consumer or admin, and closes that. */
async function having (client, use) {
  await client.connect()
  try {
    return await use(client)
  } finally {
    await client.disconnect()
  }
}

async function newTopic (address, numPartitions = 1) {
  const topic = newName('topic')
  await having(kafka(address).admin(), (admin) => admin.createTopics({
    waitForLeaders: true, topics: [{ topic, numPartitions, replicationFactor: 1 }]
  }))
  return topic
}

const messages = (values) => values.map((value) => ({ value, partition: 0 }))

const send = (address, topic, count, settings = {}, compression = CompressionTypes.None) => having(
  kafka(address).producer(settings),
  (producer) => producer.send({ topic, acks: -1, compression, messages: messages(numbers(0, count)) })
)

/** The values that a member of the group gets, so many of them, committed behind the last. */
async function take (address, topic, groupId, count, settings = {}) {
  return having(kafka(address).consumer({ groupId, ...settings }), async (consumer) => {
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    const found = []
    await soon(new Promise((resolve, reject) => {
      consumer.run({
        autoCommit: false,
        eachMessage: async ({ message, partition }) => {
          if (found.push(message.value.toString()) === count) {
            const offset = `${BigInt(message.offset) + 1n}`
            await consumer.commitOffsets([{ topic, partition, offset }])
            resolve()
          }
        }
      }).catch(reject)
    }), `${count} messages`)
    return found.slice(0, count)
  })
}

const readAll = async (address, topic, expected, settings) =>
  same(await take(address, topic, newName('group'), expected.length, settings), expected, 'messages')

async function roundTrip (address) {
  for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) { // the others are not its own
    const topic = await newTopic(address)
    await send(address, topic, 100, {}, compression)
    await readAll(address, topic, numbers(0, 100))
  }
}

async function idempotentProducer (address) {
  const topic = await newTopic(address)
  await send(address, topic, 1_000, { idempotent: true })
  await readAll(address, topic, numbers(0, 1_000))
}

async function consumerGroup (address) {
  const topic = await newTopic(address)
  await send(address, topic, 10)
  const group = newName('group')
  same(await take(address, topic, group, 4), numbers(0, 4), 'the first messages')
  same(await take(address, topic, group, 6), numbers(4, 10), 'those behind the commit')
}

const groupsAdministered = (address) => having(kafka(address).admin(), async (admin) => {
  const topic = await newTopic(address)
  const groupId = newName('group')
  await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '0' }] })
  const [found] = await admin.fetchOffsets({ groupId, topics: [topic] })
  same(found.partitions[0].offset, '0', 'the committed offset')
  await admin.deleteGroups([groupId])
})

const deleteRecords = (address) => having(kafka(address).admin(), async (admin) => {
  const topic = await newTopic(address)
  await send(address, topic, 20)
  await admin.fetchTopicOffsets(topic) // it knows no topic that it was not asked for before
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '15' }] })
  await readAll(address, topic, numbers(15, 20))
})

const transactional = (address, transactionalId) =>
  kafka(address).producer({ transactionalId, idempotent: true, maxInFlightRequests: 1 })

async function transactions (address) {
  const topic = await newTopic(address)
  await having(transactional(address, newName('transaction')), async (producer) => {
    for (const value of numbers(0, 6)) {
      const transaction = await producer.transaction()
      await transaction.send({ topic, acks: -1, messages: messages([value]) })
      await (Number(value) % 2 === 0 ? transaction.abort() : transaction.commit())
    }
  })
  await readAll(address, topic, ['1', '3', '5'])
  await readAll(address, topic, numbers(0, 6), { readUncommitted: true })
}

/** Writes offsets of another topic's group within the transaction; the first try is aborted. */
async function transactionalCopy (address) {
  const [from, to] = [await newTopic(address), await newTopic(address)]
  await send(address, from, 10)
  const groupId = newName('group')
  for (const commits of [false, true]) {
    await having(transactional(address, newName('transaction')), async (producer) => {
      const transaction = await producer.transaction()
      await transaction.send({ topic: to, acks: -1, messages: messages(numbers(0, 10)) })
      await transaction.sendOffsets({
        consumerGroupId: groupId, topics: [{ topic: from, partitions: [{ partition: 0, offset: '10' }] }]
      })
      await (commits ? transaction.commit() : transaction.abort())
    })
    const [found] = await having(kafka(address).admin(), (admin) => admin.fetchOffsets({ groupId, topics: [from] }))
    same(found.partitions[0].offset, commits ? '10' : '-1', 'the committed offset')
  }
  await readAll(address, to, numbers(0, 10))
}

await run({
  'round trip': roundTrip,
  'idempotent producer': idempotentProducer,
  'consumer group': consumerGroup,
  'groups administered': groupsAdministered,
  'delete records': deleteRecords,
  transactions,
  'transactional copy': transactionalCopy
})
