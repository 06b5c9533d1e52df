package pyrunner;

import io.debezium.connector.postgresql.PostgresConnector;
import org.apache.kafka.connect.connector.Task;

/** Debezium's connector for PostgreSQL with a task that outlives its database in every moment; see {@link OutboxConnectorTask}. */
public class OutboxConnector extends PostgresConnector {

    @Override
    public Class<? extends Task> taskClass() {
        return OutboxConnectorTask.class;
    }
}
