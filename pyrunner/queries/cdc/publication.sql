-- Whether a publication publishes INSERTs into outbox.event through its root and nothing else; null where there is none.
select outbox.is_publication_right(%(publication)s) as is_right
