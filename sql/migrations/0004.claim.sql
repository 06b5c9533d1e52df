-- A claim carries where its rows lie, and bookings their states: the transition goes straight to them.
-- depends: 0003.expiration

alter type expiration.claim add attribute row_ids tid[], add attribute statuses text[];
comment on type expiration.claim is 'Items locked for a batch, in deadline order: their deadlines, where the locked rows lie (ctid), the states of bookings; and whether the batch is full, so that more may be due behind it.';
