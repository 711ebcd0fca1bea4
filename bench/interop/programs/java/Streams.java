import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams: counts per key in a process of its own, that is killed half-way and loses its disk. Each count must be
 * published exactly once, in order: 1, 2, 3 and so on for every key.
 */
public final class Streams {
    private static final int PARTITIONS = 2;
    private static final int KEYS = 7;
    private static final int EACH = 300;
    /** A streams group waits 45 s for a member that was killed, at the least with Kafka. */
    private static final long FOLLOW_MILLISECONDS_MAX = 45_000 + Scenario.MILLISECONDS_MAX;
    private static final Duration POLL = Duration.ofMillis(200);

    public static void main(String[] words) throws Exception {
        if (words[0].equals("application")) {
            application(words[1], words[2], words[3], words[4], words[5], words[6]);
            return;
        }
        Scenario.run(Map.of(
            "Streams, exactly once", address -> play(address, "classic", "exactly_once_v2"),
            "Streams, the new group protocol", address -> play(address, "streams", "exactly_once_v2")), words);
    }

    private static void play(String address, String protocol, String guarantee) throws Exception {
        String from = Scenario.topic(address, PARTITIONS, Map.of());
        String to = Scenario.topic(address, PARTITIONS, Map.of());
        String name = Scenario.newName("streams");
        Path disk = Files.createTempDirectory("interop-streams");
        Map<String, List<Long>> counts = new TreeMap<>();
        Process running = null;
        try (KafkaConsumer<String, Long> consumer = reader(address, to)) {
            send(address, from);
            running = start(address, protocol, guarantee, name, from, to, disk.resolve("first"));
            follow(consumer, counts, KEYS * EACH / 2);
            running.destroyForcibly().waitFor();
            send(address, from);
            running = start(address, protocol, guarantee, name, from, to, disk.resolve("second"));
            follow(consumer, counts, 2 * KEYS * EACH);
            consumer.poll(POLL).forEach(record -> keep(counts, record));
        } finally {
            if (running != null) {
                running.destroyForcibly().waitFor();
            }
            try (Stream<Path> files = Files.walk(disk)) {
                files.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
            }
        }
        List<Long> expected = LongStream.rangeClosed(1, 2 * EACH).boxed().toList();
        for (int key = 0; key < KEYS; key++) {
            Scenario.same(counts.get("key " + key), expected, "counts of key " + key);
        }
    }

    private static void send(String address, String topic) {
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(
                Map.of("bootstrap.servers", address), new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < KEYS * EACH; number++) {
                producer.send(new ProducerRecord<>(topic, "key " + number % KEYS, "" + number));
            }
        }
    }

    private static KafkaConsumer<String, Long> reader(String address, String topic) {
        KafkaConsumer<String, Long> consumer = new KafkaConsumer<>(
            Map.of("bootstrap.servers", address, "isolation.level", "read_committed", "auto.offset.reset", "earliest"),
            new StringDeserializer(), new LongDeserializer());
        List<TopicPartition> partitions = new ArrayList<>();
        for (int partition = 0; partition < PARTITIONS; partition++) {
            partitions.add(new TopicPartition(topic, partition));
        }
        consumer.assign(partitions);
        return consumer;
    }

    private static void follow(KafkaConsumer<String, Long> consumer, Map<String, List<Long>> counts, int wanted)
            throws Exception {
        Scenario.until(wanted + " counts", FOLLOW_MILLISECONDS_MAX, () -> {
            consumer.poll(POLL).forEach(record -> keep(counts, record));
            return counts.values().stream().mapToInt(List::size).sum() >= wanted;
        });
    }

    private static void keep(Map<String, List<Long>> counts, ConsumerRecord<String, Long> record) {
        counts.computeIfAbsent(record.key(), key -> new ArrayList<>()).add(record.value());
    }

    private static Process start(String address, String protocol, String guarantee, String name, String from, String to,
            Path disk) throws Exception {
        String java = ProcessHandle.current().info().command().orElse("java");
        return new ProcessBuilder(java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp",
            System.getProperty("java.class.path"), "Streams", "application", address, protocol + " " + guarantee, name,
            from, to, disk.toString())
            .redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.DISCARD).start();
    }

    private static void application(String address, String modes, String name, String from, String to, String disk) {
        Properties settings = new Properties();
        settings.putAll(new HashMap<>(Map.of(
            "bootstrap.servers", address, "application.id", name, "processing.guarantee", modes.split(" ")[1],
            "group.protocol", modes.split(" ")[0], "state.dir", disk, "commit.interval.ms", 100,
            "statestore.cache.max.bytes", 0, "producer.transaction.timeout.ms", 5_000, "replication.factor", 1)));
        if (modes.startsWith("classic")) {
            settings.put("session.timeout.ms", 6_000);
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(from, Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey().count().toStream().to(to, Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error ->
            org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse
                .SHUTDOWN_CLIENT);
        streams.start();
    }
}
