import static java.util.Map.entry;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own Java clients. */
public final class Clients {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final Duration SHORTLY = Duration.ofMillis(50);
    private static final int LOCK_MILLISECONDS = 4_000;
    private static final Map<String, Object> COMMITTED = Map.of("isolation.level", "read_committed");

    public static void main(String[] words) {
        Scenario.run(Map.ofEntries(
            entry("round trip", Clients::roundTrip),
            entry("idempotent producer", Clients::idempotentProducer),
            entry("consumer group", address -> consumerGroup(address, "classic")),
            entry("two members", address -> twoMembers(address, "classic")),
            entry("new group protocol", Clients::newGroupProtocol),
            entry("offsets by time", Clients::offsetsByTime),
            entry("topics and configs", Clients::topicsAndConfigs),
            entry("groups administered", Clients::groupsAdministered),
            entry("delete records", Clients::deleteRecords),
            entry("transactions", Clients::transactions),
            entry("transactional copy", Clients::transactionalCopy),
            entry("zombie fenced", Clients::zombieFenced),
            entry("share group", Clients::shareGroup),
            entry("share group, locks renewed", Clients::locksRenewed)), words);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static KafkaProducer<byte[], byte[]> producer(String address, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", address, "linger.ms", 20));
        all.putAll(settings);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static Map<String, Object> reading(String address, String group, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", address, "group.id", group));
        all.putAll(settings);
        return all;
    }

    private static KafkaConsumer<byte[], byte[]> consumer(String address, String group, Map<String, Object> settings) {
        Map<String, Object> all = reading(address, group, settings);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", false);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Sends so many numbers, a second of event time apart. */
    private static void send(String address, String topic, int count, Map<String, Object> settings) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(address, settings)) {
            for (int number = 0; number < count; number++) {
                sent.add(producer.send(new ProducerRecord<>(
                    topic, 0, 1_700_000_000_000L + 1_000L * number, null, bytes("" + number))));
            }
            producer.flush();
        }
        for (Future<RecordMetadata> one : sent) {
            one.get();
        }
    }

    private static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> consumer, int count)
            throws Exception {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        Scenario.until(count + " messages", () -> {
            consumer.poll(POLL).forEach(found::add);
            return found.size() >= count;
        });
        return found;
    }

    private static List<String> values(List<ConsumerRecord<byte[], byte[]>> records) {
        return records.stream().map(record -> text(record.value())).toList();
    }

    /** The values of partition 0 from its beginning, `count` of them. */
    private static List<String> read(String address, String topic, int count, Map<String, Object> settings)
            throws Exception {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(address, Scenario.newName("group"), settings)) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            return values(take(consumer, count));
        }
    }

    private static List<String> numbers(int count) {
        return java.util.stream.IntStream.range(0, count).mapToObj(number -> "" + number).toList();
    }

    private static void roundTrip(String address) throws Exception {
        for (String compression : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            String topic = Scenario.topic(address, 1, Map.of());
            send(address, topic, 100, Map.of("compression.type", compression));
            Scenario.same(read(address, topic, 100, Map.of()), numbers(100), compression);
        }
    }

    private static void idempotentProducer(String address) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of());
        send(address, topic, 1_000, Map.of("enable.idempotence", true, "acks", "all", "batch.size", 1_000));
        Scenario.same(read(address, topic, 1_000, Map.of()), numbers(1_000), "messages in order");
    }

    private static void consumerGroup(String address, String protocol) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of());
        send(address, topic, 10, Map.of());
        String group = Scenario.newName("group");
        Map<String, Object> settings = Map.of("group.protocol", protocol, "max.poll.records", 4);
        try (KafkaConsumer<byte[], byte[]> first = consumer(address, group, settings)) {
            first.subscribe(List.of(topic));
            Scenario.same(values(take(first, 4)), numbers(4), "the first messages");
            first.commitSync();
        }
        try (KafkaConsumer<byte[], byte[]> second = consumer(address, group, settings)) {
            second.subscribe(List.of(topic));
            Scenario.same(values(take(second, 6)), numbers(10).subList(4, 10), "those behind the commit");
        }
    }

    /** Two members share six partitions, and one that is left gets them all. */
    private static void twoMembers(String address, String protocol) throws Exception {
        String topic = Scenario.topic(address, 6, Map.of());
        String group = Scenario.newName("group");
        Map<String, Object> settings = Map.of("group.protocol", protocol);
        try (KafkaConsumer<byte[], byte[]> one = consumer(address, group, settings)) {
            one.subscribe(List.of(topic));
            try (KafkaConsumer<byte[], byte[]> other = consumer(address, group, settings)) {
                other.subscribe(List.of(topic));
                Scenario.until("both to share the partitions", () -> {
                    one.poll(POLL);
                    other.poll(POLL);
                    return one.assignment().size() == 3 && other.assignment().size() == 3;
                });
                Set<TopicPartition> all = new HashSet<>(one.assignment());
                all.addAll(other.assignment());
                Scenario.same(all.size(), 6, "partitions that somebody holds");
            }
            Scenario.until("one to have them all", () -> {
                one.poll(POLL);
                return one.assignment().size() == 6;
            });
        }
    }

    private static void newGroupProtocol(String address) throws Exception {
        consumerGroup(address, "consumer");
        twoMembers(address, "consumer");
    }

    private static void offsetsByTime(String address) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of());
        send(address, topic, 10, Map.of("batch.size", 100));
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(address, Scenario.newName("group"), Map.of())) {
            long found = consumer.offsetsForTimes(Map.of(partition, 1_700_000_004_500L)).get(partition).offset();
            Scenario.same(found, 5L, "the offset at a time");
            Scenario.same(consumer.endOffsets(List.of(partition)).get(partition), 10L, "the end");
        }
        try (Admin admin = Scenario.admin(address)) {
            long latest = admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp()))
                .partitionResult(partition).get().offset();
            Scenario.same(latest, 9L, "the offset of the latest time");
        }
    }

    private static void topicsAndConfigs(String address) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of("retention.ms", "7200000"));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = Scenario.admin(address)) {
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            Scenario.until("three partitions", () ->
                admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 3);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                new AlterConfigOp(new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET)))).all().get();
            Scenario.until("the new retention", () -> admin.describeConfigs(List.of(resource)).all().get()
                .get(resource).get("retention.ms").value().equals("3600000"));
            admin.deleteTopics(List.of(topic)).all().get();
            Scenario.until("the topic to go", () -> !admin.listTopics().names().get().contains(topic));
        }
    }

    private static void groupsAdministered(String address) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of());
        send(address, topic, 5, Map.of());
        String group = Scenario.newName("group");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(address, group, Map.of())) {
            consumer.subscribe(List.of(topic));
            take(consumer, 5);
            consumer.commitSync();
        }
        try (Admin admin = Scenario.admin(address)) {
            Scenario.same(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition)
                .offset(), 5L, "the committed offset");
            admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(2))).all().get();
            Scenario.same(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition)
                .offset(), 2L, "the altered offset");
            admin.deleteConsumerGroups(List.of(group)).all().get();
        }
    }

    private static void deleteRecords(String address) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of());
        send(address, topic, 20, Map.of("batch.size", 100));
        TopicPartition partition = new TopicPartition(topic, 0);
        try (Admin admin = Scenario.admin(address)) {
            long start = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(15)))
                .lowWatermarks().get(partition).get().lowWatermark();
            Scenario.same(start, 15L, "log start");
        }
        Scenario.same(read(address, topic, 5, Map.of()), numbers(20).subList(15, 20), "what is left");
    }

    private static void transactions(String address) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of());
        Map<String, Object> settings = Map.of("transactional.id", Scenario.newName("transaction"));
        try (KafkaProducer<byte[], byte[]> producer = producer(address, settings)) {
            producer.initTransactions();
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, bytes("" + number)));
                if (number % 2 == 0) {
                    producer.flush();
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        Scenario.same(read(address, topic, 3, COMMITTED), List.of("1", "3", "5"), "what was committed");
        Scenario.same(read(address, topic, 6, Map.of()), numbers(6), "what was sent");
    }

    /** Reads one topic and writes another, offsets within the transaction; the first try is aborted. */
    private static void transactionalCopy(String address) throws Exception {
        String from = Scenario.topic(address, 1, Map.of());
        String to = Scenario.topic(address, 1, Map.of());
        send(address, from, 10, Map.of());
        String group = Scenario.newName("group");
        TopicPartition partition = new TopicPartition(from, 0);
        Map<String, Object> settings = Map.of("transactional.id", Scenario.newName("transaction"));
        try (KafkaProducer<byte[], byte[]> producer = producer(address, settings)) {
            producer.initTransactions();
            for (boolean commits : List.of(false, true)) {
                try (KafkaConsumer<byte[], byte[]> consumer = consumer(address, group, COMMITTED)) {
                    consumer.subscribe(List.of(from));
                    List<ConsumerRecord<byte[], byte[]>> found = take(consumer, 10);
                    Scenario.same(values(found), numbers(10), "read from the last commit on");
                    producer.beginTransaction();
                    for (ConsumerRecord<byte[], byte[]> record : found) {
                        producer.send(new ProducerRecord<>(to, 0, null, record.value()));
                    }
                    producer.sendOffsetsToTransaction(
                        Map.of(partition, new OffsetAndMetadata(10)), consumer.groupMetadata());
                    if (commits) {
                        producer.commitTransaction();
                        Scenario.same(consumer.committed(Set.of(partition)).get(partition).offset(), 10L, "committed");
                    } else {
                        producer.flush();
                        producer.abortTransaction();
                    }
                }
            }
        }
        Scenario.same(read(address, to, 10, COMMITTED), numbers(10), "the copy");
    }

    private static void zombieFenced(String address) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of());
        Map<String, Object> settings = Map.of("transactional.id", Scenario.newName("transaction"));
        try (KafkaProducer<byte[], byte[]> old = producer(address, settings);
                KafkaProducer<byte[], byte[]> successor = producer(address, settings)) {
            old.initTransactions();
            old.beginTransaction();
            old.send(new ProducerRecord<>(topic, 0, null, bytes("old"))).get();
            successor.initTransactions();
            successor.beginTransaction();
            successor.send(new ProducerRecord<>(topic, 0, null, bytes("new")));
            successor.commitTransaction();
            try {
                old.commitTransaction();
                throw new AssertionError("the older producer committed");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                // as it must
            }
        }
        Scenario.same(read(address, topic, 1, COMMITTED), List.of("new"), "what was committed");
    }

    /** Messages that a consumer releases come again, those that it rejects do not. */
    private static void shareGroup(String address) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of());
        String group = newShareGroup(address, Map.of());
        send(address, topic, 20, Map.of("batch.size", 100));
        Map<String, Object> settings = reading(address, group, Map.of("share.acknowledgement.mode", "explicit"));
        Set<Integer> accepted = new TreeSet<>();
        Set<Integer> released = new HashSet<>();
        try (KafkaShareConsumer<byte[], byte[]> consumer =
                new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(topic));
            Scenario.until("all but the rejected", () -> {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    int number = Integer.parseInt(text(record.value()));
                    if (number % 5 == 0) {
                        consumer.acknowledge(record, AcknowledgeType.REJECT);
                    } else if (number % 5 == 1 && released.add(number)) {
                        consumer.acknowledge(record, AcknowledgeType.RELEASE);
                    } else {
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                        accepted.add(number);
                    }
                }
                consumer.commitSync();
                return accepted.size() >= 16;
            });
        }
        Scenario.same(accepted.stream().anyMatch(number -> number % 5 == 0), false, "a rejected message comes again");
    }

    /** A member keeps a message as long as it renews the lock, and another gets it once it does not. */
    private static void locksRenewed(String address) throws Exception {
        String topic = Scenario.topic(address, 1, Map.of());
        String group = newShareGroup(address, Map.of("share.record.lock.duration.ms", "" + LOCK_MILLISECONDS));
        send(address, topic, 1, Map.of());
        Map<String, Object> settings = reading(address, group, Map.of("share.acknowledgement.mode", "explicit"));
        try (KafkaShareConsumer<byte[], byte[]> one = sharing(settings, topic);
                KafkaShareConsumer<byte[], byte[]> other = sharing(settings, topic)) {
            Scenario.until("the message", () -> renewed(one));
            long end = System.nanoTime() + 3L * LOCK_MILLISECONDS * 1_000_000;
            while (System.nanoTime() < end) {
                renewed(one);
                Scenario.same(other.poll(SHORTLY).count(), 0, "messages that went to the other member");
            }
            Scenario.until("the message, once its lock is over", () -> {
                for (ConsumerRecord<byte[], byte[]> record : other.poll(POLL)) {
                    other.acknowledge(record, AcknowledgeType.ACCEPT);
                    other.commitSync();
                    Scenario.same(record.deliveryCount().orElseThrow(), (short) 2, "deliveries");
                    return true;
                }
                return false;
            });
        }
    }

    /** One poll, and the locks of all that it brings renewed; it brings again what was renewed before. */
    private static boolean renewed(KafkaShareConsumer<byte[], byte[]> consumer) {
        ConsumerRecords<byte[], byte[]> records = consumer.poll(SHORTLY);
        records.forEach(record -> consumer.acknowledge(record, AcknowledgeType.RENEW));
        consumer.commitSync();
        return !records.isEmpty();
    }

    private static KafkaShareConsumer<byte[], byte[]> sharing(Map<String, Object> settings, String topic) {
        KafkaShareConsumer<byte[], byte[]> consumer =
            new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    /** A group that reads from the beginning, with these configs besides. */
    private static String newShareGroup(String address, Map<String, String> configs) throws Exception {
        String group = Scenario.newName("share");
        List<AlterConfigOp> changes = new ArrayList<>();
        configs.forEach((name, value) ->
            changes.add(new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET)));
        changes.add(
            new AlterConfigOp(new ConfigEntry("share.auto.offset.reset", "earliest"), AlterConfigOp.OpType.SET));
        try (Admin admin = Scenario.admin(address)) {
            admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), changes))
                .all().get(Scenario.MILLISECONDS_MAX, TimeUnit.MILLISECONDS);
        }
        return group;
    }
}
