PRAGMA application_id = 1413568589;

CREATE TABLE schema_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT schema_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE in_flight (
	request_id TEXT NOT NULL, 
	receipt_id TEXT NOT NULL, 
	writer_id TEXT NOT NULL, 
	received_at DATETIME NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (request_id)
);

CREATE INDEX in_flight_by_writer ON in_flight (writer_id);

CREATE TABLE group_totals (
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	receipts BIGINT NOT NULL, 
	failures BIGINT NOT NULL, 
	unpriced BIGINT NOT NULL, 
	off_scale BIGINT NOT NULL, 
	input_tokens BIGINT NOT NULL, 
	output_tokens BIGINT NOT NULL, 
	uncounted BIGINT NOT NULL, 
	cost_dollars BIGINT NOT NULL, 
	cost_picodollars BIGINT NOT NULL, 
	first_at DATETIME, 
	last_at DATETIME, 
	PRIMARY KEY (kind, name)
)
 WITHOUT ROWID

;

CREATE INDEX group_totals_by_time ON group_totals (kind, last_at, name);

CREATE TABLE task_ends (
	name TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	finished_at DATETIME NOT NULL, 
	succeeded BOOLEAN NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (name, number)
);

CREATE TABLE losses (
	writer_id TEXT NOT NULL, 
	told_at DATETIME NOT NULL, 
	receipts BIGINT NOT NULL, 
	PRIMARY KEY (writer_id)
);

CREATE TRIGGER task_ends_no_update BEFORE UPDATE ON task_ends BEGIN SELECT RAISE(ABORT, 'task_ends is append-only: the newest word counts'); END;

CREATE TRIGGER task_ends_no_delete BEFORE DELETE ON task_ends BEGIN SELECT RAISE(ABORT, 'task_ends is append-only: the newest word counts'); END;

CREATE TABLE forms (
	number INTEGER NOT NULL, 
	digest TEXT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (number), 
	UNIQUE (digest)
);

CREATE TABLE receipts (
	number INTEGER NOT NULL, 
	id TEXT NOT NULL, 
	request_id TEXT NOT NULL, 
	supersedes TEXT, 
	received_at DATETIME NOT NULL, 
	closed_at DATETIME NOT NULL, 
	outcome TEXT NOT NULL, 
	model TEXT NOT NULL, 
	served_by TEXT, 
	stream BOOLEAN NOT NULL, 
	task TEXT, 
	run TEXT, 
	session TEXT, 
	"key" TEXT, 
	source TEXT, 
	labels TEXT, 
	usage_basis TEXT, 
	cost_basis TEXT, 
	upstream_request_id TEXT, 
	input_fresh_tokens BIGINT, 
	input_cache_read_tokens BIGINT, 
	input_cache_write_5m_tokens BIGINT, 
	input_cache_write_30m_tokens BIGINT, 
	input_cache_write_1h_tokens BIGINT, 
	input_cache_write_12h_tokens BIGINT, 
	input_cache_write_unknown_tokens BIGINT, 
	input_image_tokens BIGINT, 
	input_audio_tokens BIGINT, 
	input_audio_cache_read_tokens BIGINT, 
	output_text_tokens BIGINT, 
	output_reasoning_tokens BIGINT, 
	output_image_tokens BIGINT, 
	output_audio_tokens BIGINT, 
	total_ns BIGINT, 
	gateway_ns BIGINT, 
	queue_ns BIGINT, 
	prefill_ns BIGINT, 
	decode_ns BIGINT, 
	stalled_ns BIGINT, 
	upstream_ns BIGINT, 
	first_token_ns BIGINT, 
	prefill_passes BIGINT, 
	decode_passes BIGINT, 
	compute_ns BIGINT, 
	itl_ns BIGINT, 
	cost_dollars BIGINT, 
	cost_picodollars BIGINT, 
	input_fresh_picodollars BIGINT, 
	input_cache_read_picodollars BIGINT, 
	input_cache_write_5m_picodollars BIGINT, 
	input_cache_write_30m_picodollars BIGINT, 
	input_cache_write_1h_picodollars BIGINT, 
	input_cache_write_12h_picodollars BIGINT, 
	input_cache_write_unknown_picodollars BIGINT, 
	input_image_picodollars BIGINT, 
	input_audio_picodollars BIGINT, 
	input_audio_cache_read_picodollars BIGINT, 
	output_text_picodollars BIGINT, 
	output_reasoning_picodollars BIGINT, 
	output_image_picodollars BIGINT, 
	output_audio_picodollars BIGINT, 
	compute_picodollars BIGINT, 
	other_picodollars BIGINT, 
	reported_picodollars BIGINT, 
	off_scale INTEGER NOT NULL, 
	form BIGINT, 
	PRIMARY KEY (number), 
	CONSTRAINT receipts_picodollars CHECK (cost_picodollars BETWEEN 0 AND 999999999999), 
	FOREIGN KEY(form) REFERENCES forms (number)
);

CREATE TABLE documents (
	number INTEGER NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (number), 
	FOREIGN KEY(number) REFERENCES receipts (number)
);

CREATE TABLE usage_by_hour (
	hour DATETIME NOT NULL, 
	digest TEXT NOT NULL, 
	model TEXT NOT NULL, 
	served_by TEXT, 
	outcome TEXT NOT NULL, 
	task TEXT, 
	run TEXT, 
	session TEXT, 
	"key" TEXT, 
	source TEXT, 
	labels TEXT, 
	usage_basis TEXT, 
	cost_basis TEXT, 
	receipts BIGINT DEFAULT '0' NOT NULL, 
	unpriced BIGINT DEFAULT '0' NOT NULL, 
	off_scale BIGINT DEFAULT '0' NOT NULL, 
	input_fresh_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_fresh_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_read_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_read_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_5m_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_5m_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_30m_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_30m_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_1h_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_1h_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_12h_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_12h_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_unknown_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_unknown_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_image_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_image_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_audio_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_audio_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_audio_cache_read_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_audio_cache_read_unknown BIGINT DEFAULT '0' NOT NULL, 
	output_text_tokens BIGINT DEFAULT '0' NOT NULL, 
	output_text_unknown BIGINT DEFAULT '0' NOT NULL, 
	output_reasoning_tokens BIGINT DEFAULT '0' NOT NULL, 
	output_reasoning_unknown BIGINT DEFAULT '0' NOT NULL, 
	output_image_tokens BIGINT DEFAULT '0' NOT NULL, 
	output_image_unknown BIGINT DEFAULT '0' NOT NULL, 
	output_audio_tokens BIGINT DEFAULT '0' NOT NULL, 
	output_audio_unknown BIGINT DEFAULT '0' NOT NULL, 
	total_ns BIGINT DEFAULT '0' NOT NULL, 
	timed BIGINT DEFAULT '0' NOT NULL, 
	gateway_ns BIGINT DEFAULT '0' NOT NULL, 
	queue_ns BIGINT DEFAULT '0' NOT NULL, 
	prefill_ns BIGINT DEFAULT '0' NOT NULL, 
	decode_ns BIGINT DEFAULT '0' NOT NULL, 
	stalled_ns BIGINT DEFAULT '0' NOT NULL, 
	upstream_ns BIGINT DEFAULT '0' NOT NULL, 
	first_token_ns BIGINT DEFAULT '0' NOT NULL, 
	first_tokens BIGINT DEFAULT '0' NOT NULL, 
	itls BIGINT DEFAULT '0' NOT NULL, 
	compute_ns BIGINT DEFAULT '0' NOT NULL, 
	reported BIGINT DEFAULT '0' NOT NULL, 
	cost_dollars BIGINT DEFAULT '0' NOT NULL, 
	cost_picodollars BIGINT DEFAULT '0' NOT NULL, 
	reported_dollars BIGINT DEFAULT '0' NOT NULL, 
	reported_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_fresh_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_fresh_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_read_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_read_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_5m_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_5m_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_30m_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_30m_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_1h_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_1h_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_12h_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_12h_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_unknown_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_unknown_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_image_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_image_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_audio_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_audio_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_audio_cache_read_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_audio_cache_read_picodollars BIGINT DEFAULT '0' NOT NULL, 
	output_text_dollars BIGINT DEFAULT '0' NOT NULL, 
	output_text_picodollars BIGINT DEFAULT '0' NOT NULL, 
	output_reasoning_dollars BIGINT DEFAULT '0' NOT NULL, 
	output_reasoning_picodollars BIGINT DEFAULT '0' NOT NULL, 
	output_image_dollars BIGINT DEFAULT '0' NOT NULL, 
	output_image_picodollars BIGINT DEFAULT '0' NOT NULL, 
	output_audio_dollars BIGINT DEFAULT '0' NOT NULL, 
	output_audio_picodollars BIGINT DEFAULT '0' NOT NULL, 
	compute_dollars BIGINT DEFAULT '0' NOT NULL, 
	compute_picodollars BIGINT DEFAULT '0' NOT NULL, 
	other_dollars BIGINT DEFAULT '0' NOT NULL, 
	other_picodollars BIGINT DEFAULT '0' NOT NULL, 
	first_at DATETIME, 
	last_at DATETIME, 
	PRIMARY KEY (hour, digest)
)
 WITHOUT ROWID

;

CREATE TABLE group_hours (
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	hour DATETIME NOT NULL, 
	PRIMARY KEY (kind, name, hour)
)
 WITHOUT ROWID

;

CREATE TABLE task_rules (
	number INTEGER NOT NULL, 
	said_at DATETIME NOT NULL, 
	word TEXT NOT NULL, 
	task TEXT, 
	kind TEXT, 
	name TEXT, 
	idle_s BIGINT, 
	PRIMARY KEY (number)
);

CREATE TABLE file_marks (
	source TEXT NOT NULL, 
	path TEXT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (source, path)
)
 WITHOUT ROWID

;

CREATE INDEX task_ends_by_time ON task_ends (finished_at);

CREATE UNIQUE INDEX receipts_by_id ON receipts (id);

CREATE UNIQUE INDEX receipts_corrected ON receipts (supersedes) WHERE supersedes IS NOT NULL;

CREATE INDEX receipts_off_scale ON receipts (off_scale) WHERE off_scale > 0;

CREATE VIEW current_receipts AS SELECT * FROM receipts AS this WHERE NOT EXISTS (SELECT 1 FROM receipts AS next WHERE next.supersedes = this.id);

CREATE TRIGGER receipts_no_update BEFORE UPDATE ON receipts BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END;

CREATE TRIGGER receipts_no_delete BEFORE DELETE ON receipts BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END;

CREATE TRIGGER documents_no_update BEFORE UPDATE ON documents BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END;

CREATE TRIGGER documents_no_delete BEFORE DELETE ON documents BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END;

CREATE TRIGGER forms_no_update BEFORE UPDATE ON forms BEGIN SELECT RAISE(ABORT, 'forms are append-only: append a correction'); END;

CREATE TRIGGER forms_no_delete BEFORE DELETE ON forms BEGIN SELECT RAISE(ABORT, 'forms are append-only: append a correction'); END;

CREATE TRIGGER documents_no_replace BEFORE INSERT ON documents WHEN EXISTS (SELECT 1 FROM documents WHERE number = NEW.number) BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END;

CREATE INDEX receipts_by_provider ON receipts (upstream_request_id) WHERE upstream_request_id IS NOT NULL AND source IS NULL;

CREATE INDEX receipts_correcting ON receipts (request_id) WHERE supersedes IS NOT NULL;

CREATE TABLE usage_by_day (
	day DATETIME NOT NULL, 
	digest TEXT NOT NULL, 
	model TEXT NOT NULL, 
	served_by TEXT, 
	outcome TEXT NOT NULL, 
	task TEXT, 
	session TEXT, 
	"key" TEXT, 
	source TEXT, 
	labels TEXT, 
	usage_basis TEXT, 
	cost_basis TEXT, 
	receipts BIGINT DEFAULT '0' NOT NULL, 
	unpriced BIGINT DEFAULT '0' NOT NULL, 
	off_scale BIGINT DEFAULT '0' NOT NULL, 
	input_fresh_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_fresh_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_read_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_read_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_5m_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_5m_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_30m_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_30m_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_1h_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_1h_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_12h_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_12h_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_unknown_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_unknown_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_image_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_image_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_audio_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_audio_unknown BIGINT DEFAULT '0' NOT NULL, 
	input_audio_cache_read_tokens BIGINT DEFAULT '0' NOT NULL, 
	input_audio_cache_read_unknown BIGINT DEFAULT '0' NOT NULL, 
	output_text_tokens BIGINT DEFAULT '0' NOT NULL, 
	output_text_unknown BIGINT DEFAULT '0' NOT NULL, 
	output_reasoning_tokens BIGINT DEFAULT '0' NOT NULL, 
	output_reasoning_unknown BIGINT DEFAULT '0' NOT NULL, 
	output_image_tokens BIGINT DEFAULT '0' NOT NULL, 
	output_image_unknown BIGINT DEFAULT '0' NOT NULL, 
	output_audio_tokens BIGINT DEFAULT '0' NOT NULL, 
	output_audio_unknown BIGINT DEFAULT '0' NOT NULL, 
	total_ns BIGINT DEFAULT '0' NOT NULL, 
	timed BIGINT DEFAULT '0' NOT NULL, 
	gateway_ns BIGINT DEFAULT '0' NOT NULL, 
	queue_ns BIGINT DEFAULT '0' NOT NULL, 
	prefill_ns BIGINT DEFAULT '0' NOT NULL, 
	decode_ns BIGINT DEFAULT '0' NOT NULL, 
	stalled_ns BIGINT DEFAULT '0' NOT NULL, 
	upstream_ns BIGINT DEFAULT '0' NOT NULL, 
	first_token_ns BIGINT DEFAULT '0' NOT NULL, 
	first_tokens BIGINT DEFAULT '0' NOT NULL, 
	itls BIGINT DEFAULT '0' NOT NULL, 
	compute_ns BIGINT DEFAULT '0' NOT NULL, 
	reported BIGINT DEFAULT '0' NOT NULL, 
	cost_dollars BIGINT DEFAULT '0' NOT NULL, 
	cost_picodollars BIGINT DEFAULT '0' NOT NULL, 
	reported_dollars BIGINT DEFAULT '0' NOT NULL, 
	reported_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_fresh_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_fresh_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_read_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_read_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_5m_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_5m_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_30m_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_30m_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_1h_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_1h_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_12h_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_12h_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_unknown_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_cache_write_unknown_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_image_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_image_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_audio_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_audio_picodollars BIGINT DEFAULT '0' NOT NULL, 
	input_audio_cache_read_dollars BIGINT DEFAULT '0' NOT NULL, 
	input_audio_cache_read_picodollars BIGINT DEFAULT '0' NOT NULL, 
	output_text_dollars BIGINT DEFAULT '0' NOT NULL, 
	output_text_picodollars BIGINT DEFAULT '0' NOT NULL, 
	output_reasoning_dollars BIGINT DEFAULT '0' NOT NULL, 
	output_reasoning_picodollars BIGINT DEFAULT '0' NOT NULL, 
	output_image_dollars BIGINT DEFAULT '0' NOT NULL, 
	output_image_picodollars BIGINT DEFAULT '0' NOT NULL, 
	output_audio_dollars BIGINT DEFAULT '0' NOT NULL, 
	output_audio_picodollars BIGINT DEFAULT '0' NOT NULL, 
	compute_dollars BIGINT DEFAULT '0' NOT NULL, 
	compute_picodollars BIGINT DEFAULT '0' NOT NULL, 
	other_dollars BIGINT DEFAULT '0' NOT NULL, 
	other_picodollars BIGINT DEFAULT '0' NOT NULL, 
	first_at DATETIME, 
	last_at DATETIME, 
	PRIMARY KEY (day, digest)
)
 WITHOUT ROWID

;

CREATE INDEX receipts_by_time ON receipts (closed_at, id, total_ns, first_token_ns, itl_ns);

CREATE UNIQUE INDEX receipts_first ON receipts (request_id) WHERE supersedes IS NULL AND (source IS NULL OR id <> 'rcpt' || substr(request_id, 4));

CREATE TRIGGER receipts_no_replace BEFORE INSERT ON receipts WHEN EXISTS (SELECT 1 FROM receipts WHERE number = NEW.number) OR EXISTS (SELECT 1 FROM receipts WHERE id = NEW.id) OR CASE WHEN NEW.supersedes IS NULL THEN EXISTS (SELECT 1 FROM receipts WHERE request_id = NEW.request_id AND supersedes IS NULL AND (source IS NULL OR id <> 'rcpt' || substr(request_id, 4))) OR EXISTS (SELECT 1 FROM receipts WHERE id = 'rcpt' || substr(NEW.request_id, 4) AND request_id = NEW.request_id AND supersedes IS NULL) ELSE EXISTS (SELECT 1 FROM receipts WHERE supersedes = NEW.supersedes) OR NOT EXISTS (SELECT 1 FROM receipts WHERE id = NEW.supersedes AND (request_id = NEW.request_id OR source IS NOT NULL AND upstream_request_id IN (NEW.upstream_request_id, NEW.request_id))) END BEGIN SELECT RAISE(ABORT, 'receipts are append-only: append a correction'); END;

INSERT INTO schema_version (version_num) VALUES ('0007');
