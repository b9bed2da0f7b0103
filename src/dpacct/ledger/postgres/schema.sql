-- A ledger in a schema of its own: the tables of a file (`disk.rows`), and what the database checks.
--
-- Rule 1: entries are only ever added, by append(), and each follows the head. A trigger stops even
-- the owner. Other roles may read tables and call functions.
-- Rule 2: totals are sums. What a run spends grows by the cost that the entry or its kind states,
-- and falls only by an abandoned round, whose cost was added before. All runs add up exactly.
-- Rule 3: whatever raises the charge, spent and held, of a ledger that has started satisfies
-- condition A, B or C of theorem 3a (docs/derivations/adaptive.md). A is inequality (D), in exact
-- numbers, with a vector p that is found here. So no client overspends by wrong arithmetic. Before
-- the first round, plans may also rest on the delta that is set aside for them, by other accountants.
-- A wrong cost, or a wrong delta or epsilon of such plans, is found by `dpacct ledger verify`.
-- Rule 4: the role that logged in, not a text, decides which team pays. A quota of a team is a cap
-- on (D) for its runs alone, at the delta of the budget.
-- Rule 5: the functions that roles may call run as the owner of the schema, look for names in it
-- first, and in pg_temp last: nobody puts own tables before these.
CREATE SCHEMA {schema};
SET LOCAL search_path = {schema}, pg_temp;

CREATE TABLE terms (one boolean PRIMARY KEY DEFAULT true CHECK (one), version int NOT NULL,
  epsilon numeric NOT NULL, delta numeric NOT NULL, gaps numeric[] NOT NULL, weights numeric[] NOT NULL);
CREATE TABLE head (one boolean PRIMARY KEY DEFAULT true CHECK (one), number bigint NOT NULL, hash bytea NOT NULL, ledger json);
INSERT INTO head (number, hash) VALUES (0, decode(repeat('00', 32), 'hex'));
CREATE TABLE entries (number bigint PRIMARY KEY CHECK (number > 0), run bigint NOT NULL, kind text NOT NULL, closes bigint UNIQUE,
  text text NOT NULL, hash bytea NOT NULL UNIQUE, by_role name NOT NULL DEFAULT session_user, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX entries_of_run ON entries (run, number) WHERE kind NOT IN ('reserve', 'commit', 'row');
CREATE INDEX entries_of_kind ON entries (run, kind, number);
-- Without an index on what changes, a new version of a row stays on its page.
CREATE TABLE states (run bigint PRIMARY KEY, number bigint NOT NULL, text text NOT NULL) WITH (fillfactor = 50);
CREATE TABLE parts (part text PRIMARY KEY, total numeric[] NOT NULL);
CREATE TABLE runs (run bigint PRIMARY KEY, team text NOT NULL);
CREATE TABLE teams (team text PRIMARY KEY, total numeric[] NOT NULL);
CREATE TABLE members (role name, team text, PRIMARY KEY (role, team));  -- the empty team: all teams
CREATE TABLE quotas (id bigserial PRIMARY KEY, team text NOT NULL, epsilon numeric NOT NULL CHECK (epsilon >= 0),
  by_role name NOT NULL DEFAULT session_user, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE requests (id bigserial PRIMARY KEY, team text NOT NULL, text text NOT NULL UNIQUE, asked_by name NOT NULL DEFAULT session_user,
  asked_at timestamptz NOT NULL DEFAULT clock_timestamp(), approved_by name, approved_at timestamptz, CHECK (approved_by <> asked_by));

CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'entries are never changed' USING ERRCODE = 'DP002'; END $$;
CREATE TRIGGER entries_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON entries FOR EACH STATEMENT EXECUTE FUNCTION never();
CREATE TRIGGER quotas_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON quotas FOR EACH STATEMENT EXECUTE FUNCTION never();

-- Arithmetic. Totals are whole numbers: of each order in units of 2^-64, then in units of 1e-40 the
-- masses, the largest losses and the number of rounds without one, and these two beside the plans.
CREATE FUNCTION numbers(j json) RETURNS numeric[] LANGUAGE sql IMMUTABLE AS $$
  SELECT array_agg(CASE WHEN v ~ '^-?[0-9]{1,99}$' THEN v::numeric END ORDER BY i) FROM json_array_elements_text(j) WITH ORDINALITY AS u(v, i) $$;
CREATE FUNCTION added(a numeric[], b numeric[], c numeric DEFAULT 1) RETURNS numeric[] LANGUAGE sql IMMUTABLE AS $$
  SELECT array_agg(x + c * y ORDER BY i) FROM unnest(a, b) WITH ORDINALITY AS u(x, y, i) $$;
CREATE FUNCTION at_least(a numeric[], b numeric[]) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(bool_and(coalesce(x >= y, false)), false) FROM unnest(a, b) AS u(x, y) $$;

-- The vector p of the best loss y (`renyi.odometer`), by halving. Any p proves (D).
CREATE FUNCTION shares(s float8[], b float8[], w float8[], cost float8) RETURNS float8[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE low float8; high float8; y float8; over boolean; p float8[];
BEGIN
  SELECT min(t + (cost - ln(1 + top)) / g), min(t + (cost - v - ln(1 + g)) / g) INTO low, high
    FROM unnest(s, b, w) AS u(t, g, v), (SELECT max(g) AS top FROM unnest(b) AS g) AS m;
  FOR i IN 1..34 LOOP
    y := (low + high) / 2;
    WITH logs AS (SELECT v + g * (y - t) AS l, g FROM unnest(s, b, w) AS u(t, g, v)),
      sums AS (SELECT m, sum(e) AS e, sum(e * g) AS eg FROM (SELECT g, m, CASE WHEN l < m - 600 THEN 0 ELSE exp(l - m) END AS e
        FROM logs, (SELECT max(l) AS m FROM logs) AS top) AS x GROUP BY m)
    SELECT m + ln(e) + ln(1 + eg / e) > cost INTO over FROM sums;
    IF over THEN high := y; ELSE low := y; END IF;
  END LOOP;
  SELECT array_agg(CASE WHEN l < m - 40 THEN 0 ELSE exp(l - m) END ORDER BY i) INTO p
    FROM (SELECT v + g * (y - t) AS l, i FROM unnest(s, b, w) WITH ORDINALITY AS u(t, g, v, i)) AS x,
      (SELECT max(v + g * (y - t)) AS m FROM unnest(s, b, w) AS u(t, g, v)) AS top;
  RETURN p;
END $$;

-- Whether (D) proves at most an epsilon: (sum p b S + KL(p || w) + log 1/delta + b log b - (1+b) log(1+b)) / b, with 30
-- decimals. The stored delta and epsilon are decimals of doubles: 1e-14 of the sum of all terms covers that.
CREATE FUNCTION proves(total numeric[], most numeric, delta numeric) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE t terms; ok boolean; scaled numeric[];
BEGIN
  IF delta <= 0 OR most <= 0 THEN RETURN false; END IF;
  SELECT * INTO t FROM terms;
  -- Orders without a finite divergence (2^136) get no share, and keep a huge one.
  scaled := ARRAY(SELECT least(x, 1e42) * 0.0000000000000000000542101086242752217003726400434970855712890625 FROM unnest(total[1:cardinality(t.gaps)]) AS x);
  WITH given AS (SELECT g, ln(round(v, 40)) AS w, x AS s, round(q::numeric, 30) AS q
      FROM unnest(t.gaps, t.weights, scaled, shares(scaled::float8[], t.gaps::float8[], ARRAY(SELECT ln(v)::float8 FROM unnest(t.weights) AS v), -ln(delta)::float8)) AS u(g, v, x, q)),
    p AS (SELECT g, w, s, round(q / (SELECT sum(q) FROM given), 40) AS q FROM given WHERE q > 0),
    sums AS (SELECT sum(q * g) AS b, sum(q * g * s) AS r, sum(q * (ln(q) - w)) AS kl, sum(q * (abs(ln(q)) + abs(w))) AS size,
      -ln(delta + 0::numeric(50, 40)) AS c FROM p),
    terms AS (SELECT *, b * ln(b) AS low, (1 + b) * ln(1 + b) AS high FROM sums)
  SELECT r + kl + c + low - high + 1e-14 * (r + size + abs(c) + abs(low) + high + 1) <= most * b INTO ok FROM terms;
  RETURN coalesce(ok, false);
END $$;

-- Whether charges satisfy A or C, or B with a stated epsilon x of the initial plans.
CREATE FUNCTION fits(total numeric[], most numeric, delta numeric, promised numeric, x numeric) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE m int := cardinality(total);
BEGIN
  IF total[m - 4] > promised * 1e40 THEN RETURN false; END IF;
  RETURN coalesce(total[m - 2] = 0 AND total[m - 3] <= most * 1e40, false)
    OR coalesce(total[m] = 0 AND x >= 0 AND x * 1e40 + total[m - 1] <= most * 1e40, false)
    OR proves(total, most, delta - promised);
END $$;

-- The team that pays for a new run of this role, or of a run; NULL if it may not write.
CREATE FUNCTION team_for(r bigint, project text) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE mine text[]; payer text;
BEGIN
  mine := ARRAY(SELECT DISTINCT m.team FROM members AS m JOIN pg_roles AS o ON o.rolname = m.role
    WHERE pg_has_role(session_user, o.oid, 'MEMBER'));
  SELECT team INTO payer FROM runs WHERE run = r;
  IF NOT FOUND THEN payer := CASE WHEN project = ANY(mine) OR is_lead() THEN project WHEN cardinality(mine) = 1 THEN mine[1] END; END IF;
  RETURN CASE WHEN payer = ANY(mine) OR is_lead() THEN payer END;
END $$;
-- Whether this role may write for all teams: the owner (these functions run as it), or an approver.
CREATE FUNCTION is_lead() RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT pg_has_role(session_user, current_user, 'MEMBER') OR EXISTS (SELECT FROM members AS m JOIN pg_roles AS o ON o.rolname = m.role
    WHERE m.team = '' AND pg_has_role(session_user, o.oid, 'MEMBER')) $$;

CREATE FUNCTION refuse(why text, code text DEFAULT 'DP002') RETURNS void LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '%', why USING ERRCODE = code; END $$;

-- The lock of the head, and what a transaction needs whatever its role or server is set to.
CREATE FUNCTION take() RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
DECLARE n bigint;
BEGIN
  PERFORM set_config('lock_timeout', '60s', true), set_config('idle_in_transaction_session_timeout', '30s', true);
  IF current_setting('synchronous_commit') <> 'remote_apply' THEN PERFORM set_config('synchronous_commit', 'on', true); END IF;
  SELECT number INTO n FROM head FOR UPDATE;
  RETURN n;
END $$;

CREATE FUNCTION append(n bigint, r bigint, k text, c bigint, t text, h bytea, s text, x numeric) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
DECLARE was head; e json := t::json; cost numeric[];
BEGIN
  PERFORM take();
  SELECT * INTO was FROM head;
  IF n <> was.number + 1 OR h <> sha256(was.hash || convert_to(concat(n, ',', r, ',', k, ',', c, E'\n', t), 'UTF8')) THEN
    RAISE EXCEPTION 'entry % does not follow entry %', n, was.number USING ERRCODE = '40001'; END IF;
  IF (k = 'ledger') <> (n = 1) OR k NOT IN ('ledger', 'kind', 'run', 'charge', 'reserve', 'commit', 'abandon', 'row', 'resume', 'finish')
    OR (c IS NULL) = (k IN ('commit', 'abandon')) THEN PERFORM refuse('entry ' || n || ' is of no kind that a ledger has'); END IF;
  IF k = 'kind' THEN
    IF r <> 0 THEN PERFORM refuse('a kind of round is that of no run'); END IF;
    cost := numbers(e->'cost');
    IF NOT at_least(cost, array_fill(0::numeric, ARRAY[(SELECT cardinality(gaps) + 5 FROM terms)])) THEN PERFORM refuse('a kind of round has no such cost'); END IF;
    INSERT INTO entries (number, run, kind, text, hash) VALUES (n, r, k, t, h);
    UPDATE head SET number = n, hash = h;
  ELSE
    IF e->>'d' IS DISTINCT FROM left(encode(substring(sha256(convert_to(s, 'UTF8')) FROM 1 FOR 16), 'base64'), 22) THEN
      PERFORM refuse('the digest of entry ' || n || ' is not that of its totals'); END IF;
    PERFORM admit(was, n, r, k, c, e, s::json, x);
    INSERT INTO entries (number, run, kind, closes, text, hash) VALUES (n, r, k, c, t, h);
    INSERT INTO states VALUES (r, n, s) ON CONFLICT (run) DO UPDATE SET number = n, text = s;
    UPDATE head SET number = n, hash = h, ledger = s::json->'ledger';
  END IF;
END $$;

-- Rules 2 to 4 for an entry with totals.
CREATE FUNCTION admit(was head, n bigint, r bigint, k text, c bigint, e json, s json, x numeric) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  a json := was.ledger; z json := s->'ledger'; own json; now json := s->'run'; old json; t terms; zero numeric[]; least numeric[]; up numeric[]; spent numeric[]; held numeric[];
  charged numeric[]; before numeric[]; a_spent numeric[] := numbers(was.ledger->'spent'); a_held numeric[] := numbers(was.ledger->'held');
  z_spent numeric[] := numbers(s->'ledger'->'spent'); z_held numeric[] := numbers(s->'ledger'->'held'); o_spent numeric[]; o_held numeric[]; who text; inside boolean; began json; part text := coalesce(e->>'part', ''); shared numeric[]; cap numeric; mine numeric[]; m int; reserved entries;
BEGIN
  SELECT * INTO t FROM terms;
  m := cardinality(t.gaps) + 5;
  zero := array_fill(0::numeric, ARRAY[m]);
  IF k = 'ledger' THEN
    IF NOT is_lead() OR z_spent <> zero OR z_held <> zero THEN PERFORM refuse('a ledger begins with nothing'); END IF;
    RETURN;
  END IF;
  who := team_for(r, coalesce(e->>'project', ''));
  IF who IS NULL THEN PERFORM refuse(format('role %s may not write for this team: dpacct ledger grant lets it', session_user)); END IF;
  own := (SELECT text::json->'run' FROM states WHERE run = r);
  IF r < 1 OR (own IS NULL) <> (k IN ('run', 'charge')) THEN PERFORM refuse('run ' || r || ' is begun by another entry'); END IF;
  old := coalesce(own, json_build_object('spent', zero, 'held', zero));
  inside := e->>'s' IS NOT NULL;
  IF inside AND (k <> 'reserve' OR NOT (own->>'planned')::boolean OR (own->>'left')::boolean) THEN PERFORM refuse('run ' || r || ' has no plan that covers a round'); END IF;

  o_spent := numbers(old->'spent'); o_held := numbers(old->'held');

  -- Rule 2: the least that the run has spent now.
  least := o_spent;
  IF k = 'charge' THEN least := numbers(e->'cost');
  ELSIF k = 'reserve' THEN
    up := added(zero, numbers((SELECT text::json->'cost' FROM entries WHERE number = (e->>'k')::bigint AND kind = 'kind')), coalesce((e->>'n')::numeric, 1));
    IF coalesce((e->>'n')::bigint, 1) NOT BETWEEN 1 AND 1024 OR up IS NULL THEN PERFORM refuse('a reservation has no such kind'); END IF;
    IF inside THEN
      up := coalesce(numbers(e->'cost'), up);
      IF NOT at_least(up, zero) THEN PERFORM refuse('a round costs less than nothing'); END IF;
      IF (old->>'initial')::boolean THEN up[m - 1] := 0; up[m] := 0; END IF;
    END IF;
    least := added(least, up);
  ELSIF k = 'abandon' THEN
    SELECT * INTO reserved FROM entries WHERE number = c % 1099511627776 AND run = r AND kind = 'reserve';
    began := reserved.text::json;
    IF reserved.number IS NULL OR c / 1099511627776 >= coalesce((began->>'n')::bigint, 1) THEN PERFORM refuse('nothing was reserved that entry ' || n || ' abandons'); END IF;
    inside := began->>'s' IS NOT NULL;
    up := numbers((SELECT text::json->'cost' FROM entries WHERE number = (began->>'k')::bigint AND kind = 'kind'));
    IF inside THEN
      IF began->'cost' IS NOT NULL THEN up := ARRAY(SELECT div(v, coalesce((began->>'n')::numeric, 1)) FROM unnest(numbers(began->'cost')) AS v); END IF;
      IF (old->>'initial')::boolean THEN up[m - 1] := 0; up[m] := 0; END IF;
    END IF;
    least := added(least, up, -1);
  ELSIF k = 'commit' AND NOT EXISTS (SELECT FROM entries WHERE number = c % 1099511627776 AND run = r AND kind = 'reserve'
      AND c / 1099511627776 < coalesce((text::json->>'n')::bigint, 1)) THEN PERFORM refuse('nothing was reserved that entry ' || n || ' commits');
  END IF;
  spent := numbers(now->'spent'); held := numbers(now->'held');
  IF NOT (at_least(spent, least) AND at_least(spent, zero) AND at_least(held, zero) AND cardinality(spent) = m AND cardinality(held) = m)
    OR (k = 'run' AND e->>'plan' IS NOT NULL AND NOT at_least(held, numbers(e->'cost'))) THEN
    PERFORM refuse('the totals of run ' || r || ' behind entry ' || n || ' are too low'); END IF;
  shared := added(spent, o_spent, -1);
  IF part <> '' THEN shared := charge_part(part, spent, m); END IF;
  IF z_spent IS DISTINCT FROM added(a_spent, shared)
    OR z_held IS DISTINCT FROM added(a_held, added(held, o_held, -1)) THEN
    PERFORM refuse('the totals behind entry ' || n || ' are not the sum of those of its runs'); END IF;

  -- What never changes: the division of delta and the state "started" once a round was reserved, and a run's kind of plan.
  IF (z->>'started')::boolean IS NOT TRUE AND ((a->>'started')::boolean OR k IN ('reserve', 'charge'))
    OR ((a->>'started')::boolean AND (a->>'delta', a->>'plan_delta', a->>'promised_delta') IS DISTINCT FROM (z->>'delta', z->>'plan_delta', z->>'promised_delta'))
    OR NOT coalesce((z->>'delta')::numeric + (z->>'plan_delta')::numeric <= t.delta * (1 + 1e-14) AND (z->>'plan_delta')::numeric >= 0 AND (z->>'promised_delta')::numeric <= t.delta, false)
    OR (now->>'planned')::boolean IS DISTINCT FROM coalesce((own->>'planned')::boolean, e->>'plan' IS NOT NULL)
    OR (now->>'initial')::boolean IS DISTINCT FROM coalesce((own->>'initial')::boolean, e->>'plan' IS NOT NULL AND NOT (a->>'started')::boolean)
    OR ((old->>'left')::boolean AND NOT (now->>'left')::boolean) THEN
    PERFORM refuse('entry ' || n || ' changes what is fixed'); END IF;

  -- Rule 3
  charged := added(z_spent, z_held);
  before := added(a_spent, a_held);
  IF NOT at_least(before, charged) AND NOT ((now->>'initial')::boolean AND own IS NULL AND (z->>'plan_delta')::numeric > 0)
    AND NOT (coalesce((e->>'over_budget')::boolean, false) AND k = 'charge' AND is_lead())
    AND NOT fits(charged, t.epsilon, (z->>'delta')::numeric, (z->>'promised_delta')::numeric,
      CASE WHEN (z->>'plan_delta')::numeric > 0 AND (k IN ('run', 'charge') OR k = 'reserve' AND NOT inside) THEN x END) THEN
    PERFORM refuse(format('the database refuses entry %s: with it, all charges exceed epsilon %s', n, t.epsilon), 'DP001'); END IF;

  -- Rule 4
  INSERT INTO runs VALUES (r, who) ON CONFLICT DO NOTHING;
  up := added(added(spent, held), added(o_spent, o_held), -1);
  INSERT INTO teams AS o VALUES (who, up) ON CONFLICT (team) DO UPDATE SET total = added(o.total, up) RETURNING total INTO mine;
  SELECT epsilon INTO cap FROM quotas WHERE team = who ORDER BY id DESC LIMIT 1;
  IF FOUND AND NOT at_least(zero, up) AND NOT fits(mine, cap, t.delta, (z->>'promised_delta')::numeric, NULL) THEN
    PERFORM refuse(format('the quota of team %s, epsilon %s, does not allow it: dpacct ledger quota lists what is spent', who, cap), 'DP001'); END IF;
END $$;

-- Add a charge to a part of the data, and return by how much the data pays more: the largest part of a partition counts.
CREATE FUNCTION charge_part(name text, cost numeric[], m int) RETURNS numeric[] LANGUAGE plpgsql AS $$
DECLARE before numeric[]; after numeric[]; i int; l text := split_part(name, '=', 1) || '=';
BEGIN
  FOR i IN 1..m LOOP before[i] := (SELECT greatest(0, max(total[i])) FROM parts WHERE starts_with(part, l)); END LOOP;
  INSERT INTO parts AS p VALUES (name, cost) ON CONFLICT (part) DO UPDATE SET total = added(p.total, cost);
  FOR i IN 1..m LOOP after[i] := (SELECT greatest(0, max(total[i])) FROM parts WHERE starts_with(part, l)); END LOOP;
  RETURN added(after, before, -1);
END $$;

-- A request waits for another person. It is checked when it is approved, by its charge.
CREATE FUNCTION ask(project text, what text) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
DECLARE who text := team_for(0, project);
BEGIN
  IF who IS NULL THEN PERFORM refuse(format('role %s is in no such team', session_user)); END IF;
  INSERT INTO requests (team, text) VALUES (who, what) ON CONFLICT DO NOTHING;
  RETURN (SELECT id FROM requests WHERE text = what AND asked_by = session_user);
END $$;
CREATE FUNCTION approve(i bigint) RETURNS SETOF requests LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM requests WHERE id = i AND asked_by = session_user) THEN PERFORM refuse(format('%s asked for request %s: another person approves it', session_user, i)); END IF;
  RETURN QUERY UPDATE requests SET approved_by = session_user, approved_at = clock_timestamp() WHERE id = i AND approved_by IS NULL RETURNING *;
  IF NOT FOUND THEN PERFORM refuse(format('no request %s waits', i)); END IF;
END $$;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {schema} FROM PUBLIC;
