-- name: announce_scheduler
-- Say that a scheduler process lives, so that the others leave it its share of the shards.
INSERT INTO scheduler_processes (owner, node, pid, started_at, expires_at)
VALUES (%(owner)s, %(node)s, %(pid)s, now(), now() + make_interval(secs => %(term_s)s))
ON CONFLICT (owner) DO UPDATE SET expires_at = EXCLUDED.expires_at;

-- name: forget_scheduler
-- Leave the fleet, and clear away those who died a while ago.
DELETE FROM scheduler_processes
WHERE owner = %(owner)s OR expires_at < now() - interval '1 hour';

-- name: ensure_shards
-- Make the rows of all shards, and drop those beyond the present number.
INSERT INTO shard_leases (shard, term)
SELECT shard, 0 FROM generate_series(0, %(shards)s - 1) AS shard
ON CONFLICT DO NOTHING;

-- name: shard_owners
-- Who holds each shard now; null when it is free or its lease has ended.
SELECT shard, term, CASE WHEN expires_at > now() THEN owner END AS owner
FROM shard_leases
WHERE shard < %(shards)s
ORDER BY shard;

-- name: live_schedulers
SELECT owner FROM scheduler_processes WHERE expires_at > now();

-- name: renew_shards
-- Extend the leases of one owner. Guard: still the owner, at the very term, and not ended. A shard
-- missing from the answer is lost: a failed renewal gives it up, it is never assumed.
UPDATE shard_leases s SET expires_at = now() + make_interval(secs => %(term_s)s)
FROM unnest(%(shards)s::int[], %(terms)s::bigint[]) AS u(shard, term)
WHERE s.shard = u.shard AND s.term = u.term AND s.owner = %(owner)s AND s.expires_at > now()
RETURNING s.shard, s.term;

-- name: take_shards
-- Take free shards, each under a new term. Guard: free or ended; rows that somebody holds are
-- skipped, their turn comes again.
WITH free AS (
    SELECT shard FROM shard_leases
    WHERE shard = ANY(%(shards)s) AND (owner IS NULL OR expires_at <= now())
    ORDER BY shard
    FOR UPDATE SKIP LOCKED
)
UPDATE shard_leases s
SET owner = %(owner)s, term = s.term + 1, expires_at = now() + make_interval(secs => %(term_s)s)
FROM free
WHERE s.shard = free.shard
RETURNING s.shard, s.term;

-- name: resign_shards
-- Give shards up at once. Guard: still ours at that term; otherwise another has them already.
UPDATE shard_leases s SET owner = NULL, expires_at = NULL
FROM unnest(%(shards)s::int[], %(terms)s::bigint[]) AS u(shard, term)
WHERE s.shard = u.shard AND s.term = u.term AND s.owner = %(owner)s;
