package pyrunner;

import io.debezium.config.Configuration;
import io.debezium.connector.postgresql.PostgresConnectorTask;
import io.debezium.connector.postgresql.PostgresOffsetContext;
import io.debezium.connector.postgresql.PostgresPartition;
import io.debezium.pipeline.ChangeEventSourceCoordinator;
import java.io.IOException;
import java.sql.SQLException;
import org.apache.kafka.connect.errors.RetriableException;

/**
 * Debezium's task, which tries again where Debezium 3.6 gives up although the database has only gone away.
 *
 * <p>A task begins anew by itself after a {@link RetriableException}; any other ends it, FAILED, until somebody restarts it. Debezium
 * throws the first when the database goes away while it streams, and when its first connection of a start is refused. It throws others
 * when the database goes away later in a start, or just when the task tells it how far it has come. Both happen here.
 */
public class OutboxConnectorTask extends PostgresConnectorTask {

    /** PostgreSQL's code for something of that name being there already. */
    private static final String DUPLICATE_OBJECT = "42710";

    private boolean foundSlotLate;

    /**
     * Connects, and starts to stream.
     *
     * @throws RetriableException the database is away, starting or stopping, or has no room for another session
     */
    @Override
    public ChangeEventSourceCoordinator<PostgresPartition, PostgresOffsetContext> start(Configuration config) {
        try {
            ChangeEventSourceCoordinator<PostgresPartition, PostgresOffsetContext> coordinator = super.start(config);
            foundSlotLate = false;
            return coordinator;
        }
        catch (RetriableException e) {
            throw e;
        }
        catch (RuntimeException e) {
            if (!passes(e)) {
                throw e;
            }
            close();
            throw new RetriableException("The database went away while the task was starting", e);
        }
    }

    /**
     * Tells the slot how far the events have come.
     *
     * @throws RetriableException it cannot be told; the start that follows finds out why
     */
    @Override
    public void performCommit() {
        try {
            super.performCommit();
        }
        catch (RetriableException e) {
            throw e;
        }
        catch (RuntimeException e) {
            throw new RetriableException("The slot could not be told how far the events have come", e);
        }
    }

    /** Whether what was thrown will pass by itself. */
    private boolean passes(Throwable thrown) {
        for (Throwable e = thrown; e != null; e = e.getCause()) {
            if (e instanceof IOException) {
                return true;
            }
            if (e instanceof SQLException && ((SQLException) e).getSQLState() != null) {
                String state = ((SQLException) e).getSQLState();
                // no connection; no room; ended by an administrator, by a crash, or not yet started
                if (state.startsWith("08") || state.startsWith("53") || state.matches("57P0[123]")) {
                    return true;
                }
                // Debezium takes a slot that it could not look at for a missing one, and makes it once more; a second
                // time running it is another's of the same name
                if (state.equals(DUPLICATE_OBJECT) && !foundSlotLate) {
                    foundSlotLate = true;
                    return true;
                }
            }
        }
        return false;
    }

    /** Leaves no session behind; the next start opens others. */
    private void close() {
        try {
            doStop();
        }
        catch (RuntimeException e) {
            // the connections are gone with the database
        }
    }
}
