import collections, sys
from tests import test_stateful as s
from tests.test_stateful import *
S = collections.Counter(); R = collections.Counter()
orig = s.Machine.settle
def settle(self):
    for a, n in self.db.rows("select entity_type || ' ' || action, count(*) from crm.audit_log group by 1"): S[a] += n
    for a, n in self.db.rows("select status || '/' || coalesce(reason, ''), count(*) from expiration.run group by 1"): S[a] += n
    S['failed now'] += self.db.value("select count(*) from expiration.failed_item")
    S['failed in batches'] += self.db.value("select coalesce(sum(failed),0) from expiration.batch")
    S['skipped locked'] += self.db.value("select coalesce(sum(skipped_locked),0) from expiration.batch")
    S['retry steps'] += self.db.value("select count(*) from expiration.batch where step='retry'")
    S['examples'] += 1
    orig(self)
s.Machine.settle = settle
def test_stats(db):
    try:
        s.test_whatever_happens_each_transition_has_exactly_one_event(db, lambda a, b: None)
    finally:
        print(dict(S))
