-- Topics and work queues of every user, for all nodes of a cluster. A call of an instance is one
-- statement, and so one transaction: a node that stops or is killed leaves none half done. It locks
-- the lease of its node and then the row of its user, so calls of one user follow one another. Those
-- that may be made again after a lost answer are: push, broadcast and take are not among them.

CREATE TABLE bus_users (
    "user" TEXT PRIMARY KEY,
    bytes BIGINT NOT NULL DEFAULT 0,  -- in all work queues
    most BIGINT NOT NULL,  -- that they may have
    idle TIMESTAMPTZ  -- since the user has no instance
);

-- Instances that have called. They end, at the latest, with the lease of their node.
CREATE TABLE bus_members (
    instance TEXT PRIMARY KEY,
    "user" TEXT NOT NULL,
    lease BIGINT NOT NULL REFERENCES leases ON DELETE CASCADE
);
CREATE INDEX bus_members_user ON bus_members ("user");
CREATE INDEX bus_members_lease ON bus_members (lease);

-- Work queues, and the boxes of subscriptions.
CREATE TABLE bus_boxes (
    box BIGSERIAL PRIMARY KEY,
    "user" TEXT NOT NULL,
    topic BYTEA NOT NULL,
    instance TEXT,  -- that has subscribed; NULL for a work queue
    handle BIGINT,  -- of the subscription
    closed BOOLEAN NOT NULL DEFAULT false,  -- it waits for messages that were given to futures
    count BIGINT NOT NULL DEFAULT 0,
    bytes BIGINT NOT NULL DEFAULT 0,
    most_count BIGINT NOT NULL,
    most_bytes BIGINT NOT NULL,
    UNIQUE (instance, handle)
);
CREATE INDEX bus_boxes_topic ON bus_boxes ("user", topic);

-- Open futures: of a text from a box, or of room in a topic.
CREATE TABLE bus_waits (
    wait BIGSERIAL PRIMARY KEY,  -- in the order in which they are served
    "user" TEXT NOT NULL,
    instance TEXT NOT NULL,
    future BIGINT NOT NULL,
    box BIGINT REFERENCES bus_boxes ON DELETE CASCADE,  -- NULL for room
    topic BYTEA,
    pushes BOOLEAN,  -- room for a push, not for a broadcast
    ready BOOLEAN NOT NULL DEFAULT false,  -- a message was given to it
    UNIQUE (instance, future)
);
CREATE INDEX bus_waits_box ON bus_waits (box, wait) WHERE NOT ready;
CREATE INDEX bus_waits_room ON bus_waits ("user") WHERE box IS NULL;

CREATE TABLE bus_messages (
    message BIGSERIAL PRIMARY KEY,  -- its place: there it goes back
    box BIGINT NOT NULL REFERENCES bus_boxes ON DELETE CASCADE,
    wait BIGINT REFERENCES bus_waits ON DELETE SET NULL,  -- that has it
    size BIGINT NOT NULL,
    text BYTEA NOT NULL
);
CREATE INDEX bus_messages_free ON bus_messages (box, message) WHERE wait IS NULL;
CREATE INDEX bus_messages_given ON bus_messages (wait) WHERE wait IS NOT NULL;

CREATE VIEW bus_full AS
    SELECT bus_boxes.* FROM bus_boxes JOIN bus_users USING ("user")
    WHERE NOT closed AND (
        count >= most_count OR bus_boxes.bytes >= most_bytes OR CASE WHEN instance IS NULL
            THEN bus_users.bytes >= most
            ELSE (SELECT sum(bytes) FROM bus_boxes own WHERE own.instance = bus_boxes.instance)
                >= most_bytes
        END);

-- What a call has given, or why it is refused: the error's code and text.
CREATE TYPE bus_answer AS (code TEXT, told TEXT, value BIGINT);

-- A future has become ready: its node hears of it, by the name of its life.
CREATE FUNCTION bus_tell(instance TEXT, future BIGINT) RETURNS VOID LANGUAGE sql AS $$
    SELECT pg_notify(split_part(instance, '@', 2), future || ' ' || instance);
$$;

-- Every call begins so.
CREATE FUNCTION bus_enter(whose TEXT, who TEXT, under BIGINT, most_bytes BIGINT) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM leases WHERE number = under AND until > clock_timestamp() FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lease of the node is over';
    END IF;
    INSERT INTO bus_users ("user", most) VALUES (whose, most_bytes)
        ON CONFLICT ("user") DO UPDATE SET idle = NULL;
    INSERT INTO bus_members VALUES (who, whose, under) ON CONFLICT DO NOTHING;
END $$;

-- The oldest messages of a box go to the oldest futures; of a queue without either nothing stays.
CREATE FUNCTION bus_serve(which BIGINT) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE given BIGINT; taker bus_waits;
BEGIN
    LOOP
        SELECT message INTO given FROM bus_messages WHERE box = which AND wait IS NULL
            ORDER BY message LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT * INTO taker FROM bus_waits WHERE box = which AND NOT ready ORDER BY wait LIMIT 1;
        EXIT WHEN NOT FOUND;
        UPDATE bus_messages SET wait = taker.wait WHERE message = given;
        UPDATE bus_waits SET ready = true WHERE wait = taker.wait;
        PERFORM bus_tell(taker.instance, taker.future);
    END LOOP;
    DELETE FROM bus_boxes WHERE box = which AND count = 0 AND (closed OR instance IS NULL)
        AND NOT EXISTS (SELECT 1 FROM bus_waits WHERE box = which);
END $$;

-- Futures of room, where there is room now.
CREATE FUNCTION bus_make_room(whose TEXT) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE one bus_waits;
BEGIN
    FOR one IN
        DELETE FROM bus_waits USING bus_users WHERE bus_waits."user" = whose AND box IS NULL
            AND bus_users."user" = whose AND NOT (pushes AND bytes >= most)
            AND NOT EXISTS (SELECT 1 FROM bus_full WHERE "user" = whose
                AND bus_full.topic = bus_waits.topic AND pushes = (bus_full.instance IS NULL))
            RETURNING bus_waits.*
    LOOP
        PERFORM bus_tell(one.instance, one.future);
    END LOOP;
END $$;

-- Messages are gone from a box.
CREATE FUNCTION bus_gone(which BIGINT, gone_count BIGINT, gone_bytes BIGINT) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE one bus_boxes;
BEGIN
    UPDATE bus_boxes SET count = count - gone_count, bytes = bytes - gone_bytes WHERE box = which
        RETURNING * INTO one;
    IF one.instance IS NULL THEN
        UPDATE bus_users SET bytes = bytes - gone_bytes WHERE "user" = one."user";
    END IF;
    PERFORM bus_serve(which);
    PERFORM bus_make_room(one."user");
END $$;

-- Opens a future of a text. Made again, it may have become ready, which no one has heard.
CREATE FUNCTION bus_wait(whose TEXT, who TEXT, number BIGINT, which BIGINT) RETURNS VOID
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM bus_tell(who, number) FROM bus_waits WHERE instance = who AND future = number AND ready;
    INSERT INTO bus_waits ("user", instance, future, box) VALUES (whose, who, number, which)
        ON CONFLICT DO NOTHING;
    PERFORM bus_serve(which);
END $$;

-- Calls of instances

CREATE FUNCTION bus_subscribe(
    whose TEXT, who TEXT, under BIGINT, most BIGINT, number BIGINT, name BYTEA,
    most_own BIGINT, most_topic BIGINT, most_count BIGINT, most_bytes BIGINT
) RETURNS bus_answer LANGUAGE plpgsql AS $$
BEGIN
    PERFORM bus_enter(whose, who, under, most);
    IF (SELECT count(*) FROM bus_boxes WHERE instance = who AND NOT closed
            AND handle <> number) >= most_own THEN
        RETURN ROW ('limit-exceeded',
            most_own || ' subscriptions are open; unsubscribe from some first', NULL)::bus_answer;
    ELSIF (SELECT count(*) FROM bus_boxes WHERE "user" = whose AND topic = name
            AND NOT closed AND instance IS NOT NULL AND (instance, handle) <> (who, number)
            ) >= most_topic THEN
        RETURN ROW ('limit-exceeded', '{topic} has ' || most_topic
            || ' subscriptions, in all instances; use several topics', NULL)::bus_answer;
    END IF;
    INSERT INTO bus_boxes ("user", topic, instance, handle, most_count, most_bytes)
        VALUES (whose, name, who, number, most_count, most_bytes) ON CONFLICT DO NOTHING;
    RETURN ROW (NULL, NULL, number)::bus_answer;
END $$;

-- Gives the futures that no message was given to.
CREATE FUNCTION bus_unsubscribe(
    whose TEXT, who TEXT, under BIGINT, most BIGINT, number BIGINT
) RETURNS BIGINT[] LANGUAGE plpgsql AS $$
DECLARE which BIGINT; ended BIGINT[]; gone_count BIGINT; gone_bytes BIGINT;
BEGIN
    PERFORM bus_enter(whose, who, under, most);
    UPDATE bus_boxes SET closed = true WHERE instance = who AND handle = number
        RETURNING box INTO which;
    WITH gone AS (DELETE FROM bus_waits WHERE box = which AND NOT ready RETURNING future)
        SELECT coalesce(array_agg(future), '{}') INTO ended FROM gone;
    WITH gone AS (DELETE FROM bus_messages WHERE box = which AND wait IS NULL RETURNING size)
        SELECT count(*), coalesce(sum(size), 0) INTO gone_count, gone_bytes FROM gone;
    PERFORM bus_gone(which, gone_count, gone_bytes);
    RETURN ended;
END $$;

CREATE FUNCTION bus_next(
    whose TEXT, who TEXT, under BIGINT, most BIGINT, number BIGINT, subscription BIGINT
) RETURNS bus_answer LANGUAGE plpgsql AS $$
DECLARE which BIGINT;
BEGIN
    PERFORM bus_enter(whose, who, under, most);
    SELECT box INTO which FROM bus_boxes WHERE instance = who AND handle = subscription;
    IF NOT FOUND THEN
        RETURN ROW ('failed-dependency', 'node-lost: the subscription has ended with the lease of'
            ' its node; subscribe again, and go on', NULL)::bus_answer;
    END IF;
    PERFORM bus_wait(whose, who, number, which);
    RETURN NULL;
END $$;

CREATE FUNCTION bus_queue(
    whose TEXT, name BYTEA, most_count BIGINT, most_bytes BIGINT
) RETURNS BIGINT LANGUAGE plpgsql AS $$
DECLARE which BIGINT;
BEGIN
    SELECT box INTO which FROM bus_boxes
        WHERE "user" = whose AND topic = name AND instance IS NULL;
    IF NOT FOUND THEN
        INSERT INTO bus_boxes ("user", topic, most_count, most_bytes)
            VALUES (whose, name, most_count, most_bytes) RETURNING box INTO which;
    END IF;
    RETURN which;
END $$;

CREATE FUNCTION bus_pull(
    whose TEXT, who TEXT, under BIGINT, most BIGINT, number BIGINT, name BYTEA,
    most_count BIGINT, most_bytes BIGINT
) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE which BIGINT;
BEGIN
    PERFORM bus_enter(whose, who, under, most);
    which := bus_queue(whose, name, most_count, most_bytes);
    PERFORM bus_wait(whose, who, number, which);
END $$;

CREATE FUNCTION bus_room(
    whose TEXT, who TEXT, under BIGINT, most BIGINT, number BIGINT, name BYTEA, for_push BOOLEAN
) RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    PERFORM bus_enter(whose, who, under, most);
    INSERT INTO bus_waits ("user", instance, future, topic, pushes)
        VALUES (whose, who, number, name, for_push) ON CONFLICT DO NOTHING;
    PERFORM bus_make_room(whose);
END $$;

CREATE FUNCTION bus_broadcast(
    whose TEXT, who TEXT, under BIGINT, most BIGINT, name BYTEA, body BYTEA, counts BIGINT
) RETURNS bus_answer LANGUAGE plpgsql AS $$
DECLARE slow bus_full; boxes BIGINT[];
BEGIN
    PERFORM bus_enter(whose, who, under, most);
    SELECT * INTO slow FROM bus_full
        WHERE "user" = whose AND topic = name AND instance IS NOT NULL ORDER BY box LIMIT 1;
    IF FOUND THEN
        RETURN ROW ('would-block', slow.instance || ' has not read ' || slow.count
            || ' messages (' || slow.bytes || ' bytes) of {topic}, so this one was sent to no one;'
            || ' `broadcast-room` tells when to try again', NULL)::bus_answer;
    END IF;
    WITH put AS (UPDATE bus_boxes SET count = count + 1, bytes = bytes + counts
            WHERE "user" = whose AND topic = name AND instance IS NOT NULL AND NOT closed
            RETURNING box)
        SELECT coalesce(array_agg(box), '{}') INTO boxes FROM put;
    INSERT INTO bus_messages (box, size, text) SELECT box, counts, body FROM unnest(boxes) box;
    PERFORM bus_serve(box)
        FROM (SELECT DISTINCT box FROM bus_waits WHERE box = ANY (boxes) AND NOT ready) waiting;
    RETURN ROW (NULL, NULL, cardinality(boxes)::BIGINT)::bus_answer;
END $$;

CREATE FUNCTION bus_push(
    whose TEXT, who TEXT, under BIGINT, most BIGINT, name BYTEA, body BYTEA, counts BIGINT,
    most_queues BIGINT, most_count BIGINT, most_bytes BIGINT
) RETURNS bus_answer LANGUAGE plpgsql AS $$
DECLARE queue bus_boxes; queues BIGINT; held BIGINT; which BIGINT;
BEGIN
    PERFORM bus_enter(whose, who, under, most);
    SELECT * INTO queue FROM bus_boxes
        WHERE "user" = whose AND topic = name AND instance IS NULL;
    SELECT count(*) INTO queues FROM bus_boxes WHERE "user" = whose AND instance IS NULL;
    SELECT bytes INTO held FROM bus_users WHERE "user" = whose;
    IF queue.box IS NULL AND queues >= most_queues THEN
        RETURN ROW ('limit-exceeded',
            most_queues || ' queues hold messages; pull from some first', NULL)::bus_answer;
    ELSIF held >= most THEN
        RETURN ROW ('would-block', held || ' bytes wait in your queues, in ' || queues
            || ' topics; `push-room` tells when to try again', NULL)::bus_answer;
    ELSIF queue.count >= queue.most_count OR queue.bytes >= queue.most_bytes THEN
        RETURN ROW ('would-block', queue.count || ' messages (' || queue.bytes
            || ' bytes) wait in {topic} already; `push-room` tells when to try again',
            NULL)::bus_answer;
    END IF;
    which := bus_queue(whose, name, most_count, most_bytes);
    UPDATE bus_boxes SET count = count + 1, bytes = bytes + counts WHERE box = which;
    UPDATE bus_users SET bytes = bytes + counts WHERE "user" = whose;
    INSERT INTO bus_messages (box, size, text) VALUES (which, counts, body);
    PERFORM bus_serve(which);
    RETURN NULL;
END $$;

-- The message that was given to a future, which is gone from here; NULL if it is not there any more.
CREATE FUNCTION bus_take(
    whose TEXT, who TEXT, under BIGINT, most BIGINT, number BIGINT
) RETURNS BYTEA LANGUAGE plpgsql AS $$
DECLARE taken bus_messages;
BEGIN
    PERFORM bus_enter(whose, who, under, most);
    DELETE FROM bus_messages USING bus_waits WHERE bus_messages.wait = bus_waits.wait
        AND instance = who AND future = number RETURNING bus_messages.* INTO taken;
    IF FOUND THEN
        DELETE FROM bus_waits WHERE wait = taken.wait;
        PERFORM bus_gone(taken.box, 1, taken.size);
    END IF;
    RETURN taken.text;
END $$;

-- Futures are given up: what was given to them goes back, or is gone with its subscription.
CREATE FUNCTION bus_cancel(
    whose TEXT, who TEXT, under BIGINT, most BIGINT, numbers BIGINT[]
) RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE one RECORD;
BEGIN
    PERFORM bus_enter(whose, who, under, most);
    FOR one IN
        DELETE FROM bus_waits WHERE instance = who AND future = ANY (numbers) RETURNING box
    LOOP
        PERFORM bus_serve(one.box);
    END LOOP;
    FOR one IN
        WITH gone AS (DELETE FROM bus_messages USING bus_boxes WHERE instance = who AND closed
                AND bus_messages.box = bus_boxes.box AND wait IS NULL
                RETURNING bus_messages.box, size)
            SELECT box, count(*) AS count, sum(size) AS size FROM gone GROUP BY box
    LOOP
        PERFORM bus_gone(one.box, one.count, one.size::BIGINT);
    END LOOP;
END $$;

-- An instance ends, by its node or with the lease: what it has not taken goes back.
CREATE FUNCTION bus_ended() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE queues BIGINT[];
BEGIN
    PERFORM 1 FROM bus_users WHERE "user" = OLD."user" FOR UPDATE;
    WITH gone AS (DELETE FROM bus_waits WHERE instance = OLD.instance RETURNING box)
        SELECT array_agg(DISTINCT box) INTO queues FROM gone;
    DELETE FROM bus_boxes WHERE instance = OLD.instance;
    PERFORM bus_serve(box) FROM unnest(queues) box;
    PERFORM bus_make_room(OLD."user");
    IF NOT EXISTS (SELECT 1 FROM bus_members
            WHERE "user" = OLD."user" AND instance <> OLD.instance) THEN
        DELETE FROM bus_users WHERE "user" = OLD."user" AND bytes = 0;
        UPDATE bus_users SET idle = clock_timestamp() WHERE "user" = OLD."user";
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER bus_ended BEFORE DELETE ON bus_members FOR EACH ROW EXECUTE FUNCTION bus_ended();

-- An instance has ended. Queues of users without instances that are idle longest go first.
CREATE FUNCTION bus_leave(who TEXT, under BIGINT, most_idle BIGINT) RETURNS VOID
LANGUAGE plpgsql AS $$
DECLARE oldest TEXT;
BEGIN
    DELETE FROM bus_members WHERE instance = who AND lease = under;
    WHILE (SELECT sum(bytes) FROM bus_users WHERE idle IS NOT NULL) > most_idle LOOP
        SELECT "user" INTO oldest FROM bus_users WHERE idle IS NOT NULL
            ORDER BY idle LIMIT 1 FOR UPDATE SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        DELETE FROM bus_boxes WHERE "user" = oldest;
        DELETE FROM bus_users WHERE "user" = oldest;
    END LOOP;
END $$;
