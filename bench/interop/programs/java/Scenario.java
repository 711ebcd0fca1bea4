import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;

/** What the Java programs share: names, waits, and how a scenario ends (as in scenario.py). */
interface Scenario {
    long MILLISECONDS_MAX = 40_000;
    int NOT_OFFERED = 3;

    /** Plays the scenario with the node at this address; throws what went wrong. */
    void play(String address) throws Exception;

    static String newName(String kind) {
        return "interop-" + kind + "-" + UUID.randomUUID().toString().substring(0, 8);
    }

    static void same(Object found, Object expected, String what) {
        if (!found.equals(expected)) {
            throw new AssertionError(what + ": " + clipped(found) + " instead of " + clipped(expected));
        }
    }

    static Admin admin(String address) {
        return Admin.create(Map.of("bootstrap.servers", address));
    }

    /** A new topic's name. */
    static String topic(String address, int partitions, Map<String, String> configs) throws Exception {
        String name = newName("topic");
        try (Admin admin = admin(address)) {
            admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1).configs(configs)))
                .all().get(MILLISECONDS_MAX, TimeUnit.MILLISECONDS);
        }
        return name;
    }

    /** Calls until it says yes, and throws once that took too long. */
    static void until(String what, Condition condition) throws Exception {
        until(what, MILLISECONDS_MAX, condition);
    }

    static void until(String what, long milliseconds, Condition condition) throws Exception {
        long deadline = System.nanoTime() + milliseconds * 1_000_000;
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("waited " + milliseconds / 1_000 + " s in vain for " + what);
            }
        }
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    /** The program: plays the scenario that is named, and ends the process. */
    static void run(Map<String, Scenario> scenarios, String[] words) {
        Scenario scenario = scenarios.get(words[0]);
        if (scenario == null) {
            System.exit(NOT_OFFERED);
        }
        try {
            scenario.play(words[1]);
        } catch (Throwable error) {
            String said = error.toString();
            for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
                said += ": " + cause;
            }
            System.out.println(said.replace("\n", " "));
            System.exit(1);
        }
        System.exit(0);
    }

    private static String clipped(Object value) {
        String text = String.valueOf(value);
        return text.length() > 200 ? text.substring(0, 200) : text;
    }
}
