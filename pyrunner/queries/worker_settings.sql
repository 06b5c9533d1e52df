-- What a worker reads before every cycle: the job's period, and what is installed.
select
    j.period,
    (
        select i.version || ' ' || i.checksum
        from expiration.installation as i
        order by i.installed_at desc
        limit 1
    ) as installed
from expiration.job as j
where j.name = %(job)s
