-- What is installed, to see an upgrade under way.
select i.version || ' ' || i.checksum as installed
from expiration.installation as i
order by i.installed_at desc
limit 1
