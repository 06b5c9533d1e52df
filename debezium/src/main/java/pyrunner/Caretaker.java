package pyrunner;

import java.io.IOException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.kafka.connect.health.AbstractState;
import org.apache.kafka.connect.health.ConnectClusterState;
import org.apache.kafka.connect.health.ConnectorHealth;
import org.apache.kafka.connect.rest.ConnectRestExtension;
import org.apache.kafka.connect.rest.ConnectRestExtensionContext;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Restarts our connectors when they are FAILED, in every worker that has it among its {@code rest.extension.classes}.
 *
 * <p>Kafka Connect leaves what is FAILED to people, also where the cause has passed: a broker that goes away while a task is being started
 * fails it before the task has a say. The first restart comes at once, each further one after twice the time, at most
 * {@value #LONGEST_WAIT} s. Restarts by several workers do no harm: a worker that is asked restarts only what is FAILED then.
 */
public class Caretaker implements ConnectRestExtension {

    private static final Logger LOGGER = LoggerFactory.getLogger(Caretaker.class);
    private static final int LONGEST_WAIT = 300;
    private static final int SHORTEST_PEACE = 60;
    private static final Duration PATIENCE = Duration.ofSeconds(30);

    private final ScheduledExecutorService clock = Executors.newSingleThreadScheduledExecutor(work -> {
        Thread thread = new Thread(work, "caretaker");
        thread.setDaemon(true);
        return thread;
    });
    private final HttpClient http = HttpClient.newBuilder().connectTimeout(PATIENCE).build();
    private final Map<String, Trouble> troubles = new HashMap<>();
    private URI worker;

    /** How often a connector was restarted, and when it is its turn again. */
    private static final class Trouble {
        private long wait = 1;
        private long due = System.nanoTime();

        private void restarted() {
            due = System.nanoTime() + TimeUnit.SECONDS.toNanos(wait);
            wait = Math.min(2 * wait, LONGEST_WAIT);
        }

        private boolean isDue() {
            return System.nanoTime() - due >= 0;
        }

        /** Well for long enough: what fails again soon after each start is not begun with anew. */
        private boolean isOver() {
            return System.nanoTime() - due >= TimeUnit.SECONDS.toNanos(Math.max(wait, SHORTEST_PEACE));
        }
    }

    /** Takes this worker's own address from {@code listeners}. */
    @Override
    public void configure(Map<String, ?> settings) {
        Object listeners = settings.get("listeners");
        worker = Stream.of(listeners == null ? new String[0] : listeners.toString().split(","))
                .map(String::trim)
                .filter(listener -> listener.toLowerCase().startsWith("http://"))
                .map(listener -> listener.replace("//0.0.0.0:", "//127.0.0.1:").replace("//:", "//127.0.0.1:"))
                .map(URI::create)
                .findFirst()
                .orElse(null);
    }

    @Override
    public void register(ConnectRestExtensionContext context) {
        if (worker == null) {
            LOGGER.error("No listener by http:// is among `listeners`: nothing that is FAILED will be restarted");
            return;
        }
        ConnectClusterState cluster = context.clusterState();
        clock.scheduleWithFixedDelay(() -> look(cluster), 1, 1, TimeUnit.SECONDS);
    }

    private void look(ConnectClusterState cluster) {
        try {
            troubles.keySet().retainAll(cluster.connectors());
            for (String name : cluster.connectors()) {
                if (OutboxConnector.class.getName().equals(cluster.connectorConfig(name).get("connector.class"))) {
                    look(name, cluster.connectorHealth(name));
                }
            }
        }
        catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        // what is thrown out of here would end all further looks
        catch (Exception e) {
            LOGGER.debug("The worker cannot tell of its connectors now", e);
        }
    }

    private void look(String name, ConnectorHealth health) throws IOException, InterruptedException {
        AbstractState failed = Stream.concat(Stream.of(health.connectorState()), health.tasksState().values().stream())
                .filter(state -> "FAILED".equals(state.state()))
                .findFirst()
                .orElse(null);
        Trouble trouble = troubles.get(name);
        if (failed == null) {
            if (trouble != null && trouble.isOver()) {
                troubles.remove(name);
            }
            return;
        }
        if (trouble == null) {
            trouble = new Trouble();
            troubles.put(name, trouble);
        }
        if (!trouble.isDue()) {
            return;
        }
        trouble.restarted();
        String why = failed.traceMessage() == null ? "" : failed.traceMessage().lines().findFirst().orElse("");
        HttpRequest restart = HttpRequest
                .newBuilder(worker.resolve("/connectors/" + URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20")
                        + "/restart?includeTasks=true&onlyFailed=true"))
                .timeout(PATIENCE)
                .POST(HttpRequest.BodyPublishers.noBody())
                .build();
        int answer = http.send(restart, HttpResponse.BodyHandlers.discarding()).statusCode();
        LOGGER.warn("Connector {} is FAILED; its restart was asked for, and answered by HTTP {}: {}", name, answer, why);
    }

    @Override
    public void close() {
        clock.shutdownNow();
    }

    @Override
    public String version() {
        return "1";
    }
}
