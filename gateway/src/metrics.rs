//! Every metric's name, unit and meaning, in one place. A server has a registry of its own, so that two in one
//! process count apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use contract::{DeviceReport, EngineStats, Health, LaneStats, Span, Spread};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

/// Borders of latency histograms, in seconds.
const SECONDS: [f64; 14] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0];

/// Panics of the process: which server's work it was cannot be told where one is counted.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// The figures of one server. Clones count into the same ones.
#[derive(Clone)]
pub(crate) struct Metrics {
    recorder: Arc<PrometheusRecorder>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let builder = PrometheusBuilder::new();
        // Only an empty list of borders is refused.
        let builder = builder.set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS);
        let recorder = builder.expect("there are borders").build_recorder();
        let metrics = Self { recorder: Arc::new(recorder) };
        metrics.on(describe);
        metrics
    }
}

/// A panic was caught.
pub(crate) fn panicked() {
    PANICS.fetch_add(1, Ordering::Relaxed);
}

impl Metrics {
    /// Does what the library's macros do on the recorder that is installed, on this one.
    fn on<T>(&self, record: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(&*self.recorder, record)
    }

    /// Everything as Prometheus reads it.
    pub(crate) fn render(&self) -> String {
        self.on(|| counter!("voxlane_panics_total").absolute(PANICS.load(Ordering::Relaxed)));
        self.upkeep();
        self.recorder.handle().render()
    }

    /// Puts what histograms were given into their buckets. Until then each value is kept by itself: somebody
    /// must do this now and then, whether or not anyone reads them.
    pub(crate) fn upkeep(&self) {
        self.recorder.handle().run_upkeep();
    }

    /// One answer or message refused with this code.
    pub(crate) fn error(&self, code: &'static str) {
        self.on(|| counter!("voxlane_errors_total", "code" => code).increment(1));
    }

    /// As [`Metrics::error`], for a code that comes as text.
    pub(crate) fn error_named(&self, code: String) {
        self.on(|| counter!("voxlane_errors_total", "code" => code).increment(1));
    }

    /// A token that was not taken, by why: `missing`, `signature`, `expired`...
    pub(crate) fn token_refused(&self, reason: &'static str) {
        self.on(|| counter!("voxlane_tokens_refused_total", "reason" => reason).increment(1));
    }

    /// A TLS handshake that came to nothing.
    pub(crate) fn tls_failed(&self) {
        self.on(|| counter!("voxlane_tls_failures_total").increment(1));
    }

    /// A line of the usage log that could not be written.
    pub(crate) fn usage_lost(&self) {
        self.on(|| counter!("voxlane_usage_lines_lost_total").increment(1));
    }

    /// A client's clip became a voice.
    pub(crate) fn voice_kept(&self) {
        self.on(|| counter!("voxlane_voices_kept_total").increment(1));
    }

    /// Bytes of request bodies in memory.
    pub(crate) fn bodies(&self, bytes: usize) {
        self.on(|| gauge!("voxlane_bodies_bytes").set(bytes as f64));
    }

    /// Times the folder of voices could not be read or changed.
    pub(crate) fn voices_faults(&self, faults: u64) {
        self.on(|| counter!("voxlane_voices_folder_faults_total").absolute(faults));
    }

    /// A fetch of the key set: `done` or `failed`.
    pub(crate) fn key_set_fetched(&self, outcome: &'static str) {
        self.on(|| counter!("voxlane_key_set_fetches_total", "outcome" => outcome).increment(1));
    }

    /// From a context's first text (or an HTTP request's arrival) to its first audio at the socket.
    pub(crate) fn first_audio(&self, door: &'static str, span: Span) {
        let seconds = span.as_micros().max(0) as f64 / 1e6;
        self.on(|| histogram!("voxlane_first_audio_seconds", "door" => door).record(seconds));
    }

    /// From the first samples leaving the engine to the first packet at the socket: our own share.
    pub(crate) fn first_packet(&self, span: Span) {
        self.on(|| histogram!("voxlane_first_packet_seconds").record(span.as_micros().max(0) as f64 / 1e6));
    }

    pub(crate) fn round_trip(&self, span: Span) {
        self.on(|| histogram!("voxlane_round_trip_seconds").record(span.as_micros().max(0) as f64 / 1e6));
    }

    pub(crate) fn context_finished(&self, reason: &'static str) {
        self.on(|| counter!("voxlane_contexts_finished_total", "reason" => reason).increment(1));
    }

    pub(crate) fn session_opened(&self) {
        self.on(|| {
            gauge!("voxlane_sessions_open").increment(1.0);
            counter!("voxlane_sessions_total").increment(1);
        });
    }

    pub(crate) fn session_closed(&self, close: &'static str) {
        self.on(|| {
            gauge!("voxlane_sessions_open").decrement(1.0);
            counter!("voxlane_sessions_closed_total", "close" => close).increment(1);
            if close == "slow_reader" {
                counter!("voxlane_slow_readers_total").increment(1);
            }
        });
    }

    /// A session woke because something of its own fell due.
    pub(crate) fn session_woke(&self, reason: &'static str) {
        self.on(|| counter!("voxlane_session_wakes_total", "reason" => reason).increment(1));
    }

    /// A connection was taken; it is counted out when what this gives is dropped.
    pub(crate) fn connected(&self) -> OpenConnection {
        self.on(|| gauge!("voxlane_connections_open").increment(1.0));
        OpenConnection(self.clone())
    }

    /// A connection came when every place was taken.
    pub(crate) fn connection_refused(&self) {
        self.on(|| counter!("voxlane_connections_refused_total").increment(1));
    }

    /// A head that could not be read, by why: `malformed`, `too_large` or `timeout`.
    pub(crate) fn head_refused(&self, reason: &'static str) {
        self.on(|| counter!("voxlane_heads_refused_total", "reason" => reason).increment(1));
    }

    pub(crate) fn packets(&self, sent: u64, bytes: u64) {
        self.on(|| {
            counter!("voxlane_packets_sent_total").increment(sent);
            counter!("voxlane_packet_bytes_total").increment(bytes);
        });
    }

    pub(crate) fn packets_late(&self, count: u64) {
        self.on(|| counter!("voxlane_packets_late_total").increment(count));
    }

    pub(crate) fn playback_reports(&self, count: u64) {
        self.on(|| counter!("voxlane_playback_reports_total").increment(count));
    }

    pub(crate) fn underruns(&self, count: u64) {
        self.on(|| counter!("voxlane_listener_underruns_total").increment(count));
    }

    pub(crate) fn playback_ignored(&self, count: u64) {
        self.on(|| counter!("voxlane_playback_reports_ignored_total").increment(count));
    }

    pub(crate) fn encoded(&self, packets: usize, took: Duration, depth: usize) {
        self.on(|| {
            counter!("voxlane_opus_packets_total").increment(packets as u64);
            counter!("voxlane_opus_busy_microseconds_total")
                .increment(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            gauge!("voxlane_opus_queue_depth").set(depth as f64);
        });
    }

    pub(crate) fn queue_depth(&self, queue: &'static str, depth: usize) {
        self.on(|| histogram!("voxlane_queue_depth", "queue" => queue).record(depth as f64));
    }

    /// Copies an engine's counters, at each scrape.
    pub(crate) fn engine(&self, stats: &EngineStats) {
        self.on(|| {
            gauge!("voxlane_engine_contexts_open").set(stats.open);
            gauge!("voxlane_engine_contexts_running").set(stats.running);
            gauge!("voxlane_engine_pages_used").set(stats.pages_used);
            gauge!("voxlane_engine_pages_total").set(stats.pages_total);
            gauge!("voxlane_engine_mailbox_depth").set(stats.mailbox_depth);
            gauge!("voxlane_engine_ready_chunks").set(stats.ready_chunks);
            lane("background", stats.background);
            lane("lm", stats.lm);
            lane("urgent", stats.urgent);
            counter!("voxlane_engine_refused_total").absolute(stats.refused);
            counter!("voxlane_engine_encodes_total").absolute(stats.encodes);
            counter!("voxlane_engine_encode_hits_total").absolute(stats.encode_hits);
            counter!("voxlane_engine_frames_total").absolute(stats.frames);
            counter!("voxlane_engine_chunks_late_total").absolute(stats.chunks_late);
            for (what, counts) in [("lm", stats.cancelled_lm_freed), ("all", stats.cancelled_freed)] {
                for (steps, count) in ["0", "1", "2", "more"].into_iter().zip(counts) {
                    counter!("voxlane_engine_cancelled_freed_total", "what" => what, "steps" => steps)
                        .absolute(count);
                }
            }
            for (reason, count) in &stats.wakes {
                counter!("voxlane_engine_wakes_total", "reason" => *reason).absolute(*count);
            }
            for (shape, spread) in &stats.stages {
                let labels = [
                    ("stage", shape.stage.name().to_owned()),
                    ("lane", shape.lane.name().to_owned()),
                    ("frames", shape.length.to_string()),
                    ("rows", shape.rows.to_string()),
                ];
                times("voxlane_engine_launch_seconds", &labels, spread);
            }
            times("voxlane_engine_round_seconds", &[], &stats.rounds);
            times("voxlane_engine_round_device_seconds", &[], &stats.rounds_device);
        });
    }

    /// Copies each device's own counters, at each scrape.
    pub(crate) fn devices(&self, reports: &[DeviceReport]) {
        self.on(|| {
            for DeviceReport { device, health, stats, .. } in reports {
                let device = device.0.to_string();
                let ready = if *health == Health::Ready { 1.0 } else { 0.0 };
                gauge!("voxlane_device_ready", "device" => device.clone()).set(ready);
                gauge!("voxlane_device_contexts_open", "device" => device.clone()).set(stats.open);
                gauge!("voxlane_device_contexts_running", "device" => device.clone()).set(stats.running);
                counter!("voxlane_device_frames_total", "device" => device.clone()).absolute(stats.frames);
                for (lane, of_lane) in
                    [("background", stats.background), ("lm", stats.lm), ("urgent", stats.urgent)]
                {
                    let labels = [("device", device.clone()), ("lane", lane.to_owned())];
                    counter!("voxlane_device_busy_microseconds_total", &labels).absolute(of_lane.busy_us);
                }
            }
        });
    }
}

/// Quantiles since start, as a summary of Prometheus has them.
fn times(name: &'static str, labels: &[(&'static str, String)], spread: &Spread) {
    for (quantile, share) in [("0.5", 0.5), ("0.99", 0.99)] {
        let mut labels = labels.to_vec();
        labels.push(("quantile", quantile.to_owned()));
        gauge!(name, &labels).set(spread.quantile(share).as_micros() as f64 / 1e6);
    }
    gauge!(format!("{name}_sum"), labels).set(spread.sum_us() as f64 / 1e6);
    counter!(format!("{name}_count"), labels).absolute(spread.count());
}

/// One connection, as long as it is held.
pub(crate) struct OpenConnection(Metrics);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.on(|| gauge!("voxlane_connections_open").decrement(1.0));
    }
}

fn lane(name: &'static str, stats: LaneStats) {
    counter!("voxlane_lane_launches_total", "lane" => name).absolute(stats.launches);
    counter!("voxlane_lane_rows_total", "lane" => name).absolute(stats.rows);
    counter!("voxlane_lane_busy_microseconds_total", "lane" => name).absolute(stats.busy_us);
}

fn describe() {
    let seconds = [
        ("voxlane_first_audio_seconds", "Text in to first audio at the socket"),
        ("voxlane_first_packet_seconds", "First samples out of the engine to first packet at the socket"),
        ("voxlane_round_trip_seconds", "Round trip of our pings"),
    ];
    for (name, about) in seconds {
        describe_histogram!(name, Unit::Seconds, about);
    }
    describe_histogram!("voxlane_queue_depth", Unit::Count, "Depth of a bounded queue when it was used");
    let labelled = [
        ("voxlane_contexts_finished_total", "Contexts that ended, by reason"),
        ("voxlane_device_busy_microseconds_total", "Time a device's lane was busy"),
        ("voxlane_device_frames_total", "Frames one device decoded to sound"),
        (
            "voxlane_engine_cancelled_freed_total",
            "Cancelled contexts that the lm, or all, had let go of after so many lm steps",
        ),
        ("voxlane_engine_wakes_total", "Times the engine woke because something fell due, by what it was"),
        ("voxlane_errors_total", "Requests and messages refused, by code"),
        ("voxlane_heads_refused_total", "Heads of requests that could not be read, by why"),
        ("voxlane_key_set_fetches_total", "Fetches of the key set from its URL, by outcome"),
        ("voxlane_lane_busy_microseconds_total", "Time a lane was busy"),
        ("voxlane_lane_launches_total", "Launches in a lane"),
        ("voxlane_lane_rows_total", "Rows of all launches in a lane"),
        ("voxlane_session_wakes_total", "Times a session woke because something fell due, by what it was"),
        ("voxlane_sessions_closed_total", "Sessions that ended, by close code name"),
        ("voxlane_tokens_refused_total", "Tokens not taken, by reason"),
    ];
    let plain = [
        ("voxlane_connections_refused_total", "Connections that found every place taken"),
        ("voxlane_engine_chunks_late_total", "Chunks made after their deadline"),
        ("voxlane_engine_encode_hits_total", "Voices answered from the cache"),
        ("voxlane_engine_encodes_total", "Encode stages run"),
        ("voxlane_engine_frames_total", "Frames decoded to sound"),
        ("voxlane_engine_refused_total", "Contexts the engine refused"),
        ("voxlane_opus_busy_microseconds_total", "Time spent encoding Opus"),
        ("voxlane_opus_packets_total", "Packets encoded"),
        ("voxlane_listener_underruns_total", "Times listeners ran dry, as they report"),
        ("voxlane_packet_bytes_total", "Bytes of audio packets sent"),
        (
            "voxlane_packets_late_total",
            "Packets that left after the listener ran out, by its reports where it sends any",
        ),
        ("voxlane_packets_sent_total", "Audio packets sent"),
        ("voxlane_panics_total", "Panics caught; each is a bug of ours"),
        ("voxlane_playback_reports_ignored_total", "Playback reports that could not be true"),
        ("voxlane_playback_reports_total", "Playback reports taken in"),
        ("voxlane_sessions_total", "Sessions since start"),
        ("voxlane_slow_readers_total", "Sessions cut because they did not read"),
        ("voxlane_usage_lines_lost_total", "Lines of the usage log that could not be written"),
        ("voxlane_voices_folder_faults_total", "Times the folder of voices could not be read or changed"),
        ("voxlane_voices_kept_total", "Voices that clients brought"),
        ("voxlane_tls_failures_total", "TLS handshakes that came to nothing"),
    ];
    for (name, about) in labelled {
        describe_counter!(name, about);
    }
    for (name, about) in plain {
        describe_counter!(name, about);
        // Whoever watches it sees the first time too.
        counter!(name).increment(0);
    }
    let gauges = [
        ("voxlane_bodies_bytes", "Request bodies and long messages in memory, of all together"),
        ("voxlane_connections_open", "Public connections that hold a place: HTTP and WebSocket"),
        ("voxlane_device_contexts_open", "Contexts open on one device"),
        ("voxlane_device_contexts_running", "Contexts that hold a slot of one device"),
        ("voxlane_device_ready", "1 while the device serves, 0 once it is lost"),
        ("voxlane_engine_contexts_open", "Contexts open in the engine"),
        ("voxlane_engine_contexts_running", "Contexts that hold a slot"),
        (
            "voxlane_engine_launch_seconds",
            "Time launches took on the device, by stage, lane, captured frames and rows up to",
        ),
        ("voxlane_engine_mailbox_depth", "Commands waiting for the engine"),
        ("voxlane_engine_pages_total", "Pages of the pool"),
        ("voxlane_engine_pages_used", "Pages owned by someone"),
        ("voxlane_engine_ready_chunks", "Chunks ready and not launched"),
        ("voxlane_engine_round_device_seconds", "Part of such a round spent in calls to the device"),
        (
            "voxlane_engine_round_seconds",
            "Time the engine's thread took to schedule, when it launched anything",
        ),
        ("voxlane_opus_queue_depth", "Pieces waiting to be encoded"),
        ("voxlane_sessions_open", "Sessions with a socket"),
    ];
    for (name, about) in gauges {
        describe_gauge!(name, about);
    }
}
