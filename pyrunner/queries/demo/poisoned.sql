-- Rows that cannot be changed, because their version cannot grow.
select
    (select count(*) from crm.leads as l where l.version = %(version)s) as leads,
    (select count(*) from crm.bookings as b where b.version = %(version)s) as bookings
