-- Every command reads what is installed, and whether somebody changed it.
grant select on table expiration.installation, expiration.migration_checksum, expiration.installed_object to crm_monitor;
grant execute on function expiration.loadable_objects(), expiration.fingerprint(oid, oid) to crm_monitor;
