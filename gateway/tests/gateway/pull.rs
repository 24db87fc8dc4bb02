//! `voxlane pull` against a stand-in of a hub, and of the host that keeps its large files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use gateway::pull::{Progress, PullError, PullOptions, Pulled, pull};
use serde_json::json;

use crate::cli::{binary, stderr};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// One request as a host saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    large: bool,
    path: String,
    range: Option<String>,
    token: Option<String>,
}

/// What the stand-in does with the next requests for a file.
#[derive(Clone, Debug)]
enum Oddity {
    /// Cuts the connection after so many bytes.
    Cut(usize),
    /// Answers with other bytes.
    Spoilt,
    /// Knows no ranges.
    Whole,
    Status(u16, Option<&'static str>),
}

#[derive(Default)]
struct Scene {
    files: BTreeMap<String, Bytes>,
    /// Files the other host keeps.
    large: Vec<String>,
    oddities: BTreeMap<String, Vec<Oddity>>,
    seen: Vec<Seen>,
    /// Where the other host listens.
    other: String,
    /// Answers every listing with this.
    refusal: Option<(u16, bool)>,
}

#[derive(Clone, Default)]
struct Hub {
    scene: Arc<Mutex<Scene>>,
    endpoint: String,
    folder: PathBuf,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Hub {
    /// A hub with these files; those that end in safetensors lie elsewhere.
    async fn start(name: &str, files: &[(&str, &[u8])]) -> Self {
        let folder =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pull-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut hub = Self { folder, ..Self::default() };
        for (path, bytes) in files {
            hub.put(path, bytes);
        }
        hub.endpoint = hub.listen(false).await;
        let other = hub.listen(true).await;
        hub.scene().other = other;
        hub
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let mut scene = self.scene();
        scene.files.insert(path.to_owned(), Bytes::copy_from_slice(bytes));
        if path.ends_with(".safetensors") {
            scene.large.push(path.to_owned());
        }
    }

    fn scene(&self) -> MutexGuard<'_, Scene> {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn odd(&self, path: &str, oddities: &[Oddity]) {
        self.scene().oddities.insert(path.to_owned(), oddities.to_vec());
    }

    async fn listen(&self, large: bool) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let scene = Arc::clone(&self.scene);
        let app = axum::Router::new().fallback(answer).with_state((scene, large));
        tokio::spawn(async move { axum::serve(listener, app).await.expect("serves") });
        format!("http://{address}")
    }

    fn to(&self) -> PathBuf {
        self.folder.join("model")
    }

    fn options(&self) -> PullOptions {
        PullOptions {
            repo: "some/model".parse().expect("a name"),
            to: self.to(),
            endpoint: Some(self.endpoint.clone()),
            token: None,
        }
    }

    async fn pull(&self) -> Result<Pulled, PullError> {
        pull(&self.options(), &mut |_: Progress<'_>| {}).await
    }

    async fn fails(&self) -> String {
        self.pull().await.expect_err("fails").to_string()
    }

    fn assert_whole(&self) {
        for (path, bytes) in &self.scene().files {
            assert!(std::fs::read(self.to().join(path)).expect("a file") == *bytes, "{path}");
        }
    }
}

async fn answer(State((scene, large)): State<(Arc<Mutex<Scene>>, bool)>, request: Request) -> Response {
    let text = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let path = request.uri().path().to_owned();
    let (range, token) = (text(header::RANGE), text(header::AUTHORIZATION));
    let mut scene = scene.lock().unwrap_or_else(PoisonError::into_inner);
    scene.seen.push(Seen { large, path: path.clone(), range: range.clone(), token: token.clone() });
    if path == "/api/models/some/model/revision/main" {
        return listing(&scene, token.is_some());
    }
    let prefix = if large { "/kept/".to_owned() } else { format!("/some/model/resolve/{COMMIT}/") };
    let Some(file) = path.strip_prefix(&prefix).map(str::to_owned) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if !large && scene.large.contains(&file) {
        let location = format!("{}/kept/{file}?signature=secret", scene.other);
        return (StatusCode::FOUND, [(header::LOCATION, location)]).into_response();
    }
    let Some(bytes) = scene.files.get(&file).cloned() else { return StatusCode::NOT_FOUND.into_response() };
    let odd = scene.oddities.get_mut(&file).filter(|left| !left.is_empty()).map(|left| left.remove(0));
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match odd {
        Some(Oddity::Status(status, wait)) => {
            let status = StatusCode::from_u16(status).expect("a status");
            let mut answer = status.into_response();
            if let Some(wait) = wait {
                answer.headers_mut().insert(header::RETRY_AFTER, wait.parse().expect("a header"));
            }
            answer
        }
        Some(Oddity::Spoilt) => {
            let mut bytes = bytes.to_vec();
            bytes[0] ^= 1;
            part(&Bytes::from(bytes), from.unwrap_or(0), None)
        }
        Some(Oddity::Whole) => part(&bytes, 0, None),
        Some(Oddity::Cut(after)) => part(&bytes, from.unwrap_or(0), Some(after)),
        None => part(&bytes, from.unwrap_or(0), None),
    }
}

/// A file from a byte on, cut after some bytes if so asked.
fn part(bytes: &Bytes, from: usize, cut: Option<usize>) -> Response {
    let all = bytes.len();
    if from >= all && from > 0 {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    let status = if from > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let body = match cut {
        None => Body::from(bytes.slice(from..)),
        Some(after) => {
            let pieces = [Ok(bytes.slice(from..from + after)), Err(std::io::Error::other("cut"))];
            Body::from_stream(futures_util::stream::iter(pieces))
        }
    };
    let range = format!("bytes {from}-{}/{all}", all.saturating_sub(1));
    let length = (all - from).to_string();
    (status, [(header::CONTENT_RANGE, range), (header::CONTENT_LENGTH, length)], body).into_response()
}

fn listing(scene: &Scene, has_token: bool) -> Response {
    if let Some((status, even_with_token)) = scene.refusal
        && (even_with_token || !has_token)
    {
        return StatusCode::from_u16(status).expect("a status").into_response();
    }
    let siblings = scene.files.iter().map(|(path, bytes)| {
        let blob = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
        let mut sibling = json!({
            "rfilename": path,
            "size": bytes.len(),
            "blobId": hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref()),
        });
        if scene.large.contains(path) {
            sibling["lfs"] = json!({ "sha256": hex(digest(&SHA256, bytes).as_ref()), "size": bytes.len() });
        }
        sibling
    });
    axum::Json(json!({ "sha": COMMIT, "siblings": siblings.collect::<Vec<_>>(), "gated": false }))
        .into_response()
}

fn weights() -> Vec<u8> {
    (0..3_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_arrives_whole_under_its_name_and_is_not_fetched_again() {
    let weights = weights();
    let files: [(&str, &[u8]); 4] = [
        ("config.json", b"{}"),
        ("model.safetensors", &weights),
        ("speech_tokenizer/config.json", b"{\"a\":1}"),
        ("vocab.json", b""),
    ];
    let hub = Hub::start("whole", &files).await;
    let mut last = (0, 0);
    let watched = &mut |progress: Progress<'_>| {
        assert!(progress.came >= last.0, "never backwards");
        last = (progress.came, progress.all);
    };
    let pulled = pull(&hub.options(), watched).await.expect("pulled");
    assert_eq!((pulled.commit.as_str(), pulled.files, pulled.bytes), (COMMIT, 4, 3_000_009));
    assert_eq!(last, (3_000_009, 3_000_009));
    hub.assert_whole();
    assert!(!hub.to().with_added_extension("pull").exists(), "what gathered it is gone");
    let asked = hub.scene().seen.len();
    assert_eq!(hub.pull().await.expect("there"), pulled);
    assert_eq!(hub.scene().seen.len(), asked + 1, "the listing only");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_goes_on_from_the_byte_where_it_was() {
    let hub = Hub::start("cut", &[("config.json", b"{}"), ("model.safetensors", &weights())]).await;
    hub.odd("model.safetensors", &[Oddity::Cut(1_000_000), Oddity::Cut(500_000), Oddity::Cut(1_499_999)]);
    hub.pull().await.expect("pulled");
    hub.assert_whole();
    let seen = hub.scene().seen.clone();
    let from = |seen: &Seen| seen.range.as_ref()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok();
    let asked: Vec<u64> = seen.iter().filter(|seen| seen.large).map(|seen| from(seen).unwrap_or(0)).collect();
    assert!(asked.is_sorted() && asked.len() == 4 && asked[1] > 0 && asked[3] > asked[2], "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_was_given_up_is_gone_on_with_by_the_next_one() {
    let hub = Hub::start("later", &[("config.json", b"{}"), ("model.safetensors", &weights())]).await;
    hub.odd("model.safetensors", &[Oddity::Cut(1_000_000), Oddity::Status(404, None)]);
    let failed = hub.fails().await;
    assert!(failed.contains("does not exist"), "{failed}");
    assert!(!hub.to().exists(), "half a checkpoint has no name");
    // What another commit left behind is not part of this one.
    let gathering = hub.to().with_added_extension("pull");
    std::fs::write(gathering.join("model-00001-of-00002.safetensors"), b"old").expect("a file");
    hub.scene().seen.clear();
    hub.pull().await.expect("pulled");
    hub.assert_whole();
    assert!(!hub.to().join("model-00001-of-00002.safetensors").exists());
    let seen = hub.scene().seen.clone();
    assert!(seen.iter().all(|seen| !seen.path.ends_with("/config.json")), "it was whole: {seen:?}");
    assert!(seen.iter().any(|seen| seen.large && seen.range.is_some()), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_know_no_ranges_or_have_nothing_beyond_start_anew() {
    let hub = Hub::start("ranges", &[("config.json", b"{}"), ("model.safetensors", &weights())]).await;
    let beyond = Oddity::Status(416, None);
    hub.odd("model.safetensors", &[Oddity::Cut(1_000_000), Oddity::Whole]);
    hub.pull().await.expect("pulled");
    hub.assert_whole();
    std::fs::remove_dir_all(hub.to()).expect("removed");
    hub.odd("model.safetensors", &[Oddity::Cut(1_000_000), beyond, Oddity::Cut(10)]);
    hub.pull().await.expect("pulled");
    hub.assert_whole();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_goes_to_the_hub_and_to_nobody_else_and_stands_in_no_error() {
    let hub = Hub::start("token", &[("config.json", b"{}"), ("model.safetensors", &weights())]).await;
    hub.scene().refusal = Some((401, false));
    let open = hub.fails().await;
    assert!(open.contains("set HF_TOKEN"), "{open}");
    let options = PullOptions { token: Some("hf_secret".to_owned()), ..hub.options() };
    pull(&options, &mut |_: Progress<'_>| {}).await.expect("pulled");
    let seen = hub.scene().seen.clone();
    let given = |seen: &Seen| seen.token.as_deref() == Some("Bearer hf_secret");
    assert!(seen.iter().skip(1).filter(|seen| !seen.large).all(given), "{seen:?}");
    assert!(seen.iter().filter(|seen| seen.large).all(|seen| seen.token.is_none()), "{seen:?}");
    std::fs::remove_dir_all(hub.to()).expect("removed");
    hub.scene().refusal = Some((401, true));
    let refused = pull(&options, &mut |_: Progress<'_>| {}).await.expect_err("refused").to_string();
    assert!(refused.contains("not accepted") && !refused.contains("secret"), "{refused}");
    hub.scene().refusal = None;
    hub.odd("model.safetensors", &vec![Oddity::Cut(0); 9]);
    let cut = pull(&options, &mut |_: Progress<'_>| {}).await.expect_err("cut").to_string();
    assert!(cut.contains("what has come stays") && !cut.contains("secret"), "{cut}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_taken_without_the_line_end_of_the_file_it_was_read_from() {
    let hub = Hub::start("line-end", &[("config.json", b"{}")]).await;
    let with = |token: &str| PullOptions { token: Some(token.to_owned()), ..hub.options() };
    let wrong =
        pull(&with("hf\nsecret"), &mut |_: Progress<'_>| {}).await.expect_err("two lines").to_string();
    assert!(wrong.contains("copy it again") && !wrong.contains("secret"), "{wrong}");
    pull(&with("hf_secret\n"), &mut |_: Progress<'_>| {}).await.expect("pulled");
    let seen = hub.scene().seen.clone();
    assert!(seen.iter().all(|seen| seen.token.as_deref() == Some("Bearer hf_secret")), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_say_what_to_do() {
    let hub = Hub::start("refusals", &[("config.json", b"{}")]).await;
    for (status, words) in
        [(403, "accept its terms"), (404, "some/model@main does not exist"), (418, "status 418")]
    {
        hub.scene().refusal = Some((status, true));
        let text = hub.fails().await;
        assert!(text.contains(words), "{status}: {text}");
    }
    hub.scene().refusal = None;
    hub.odd("config.json", &[Oddity::Status(429, Some("600"))]);
    let busy = hub.fails().await;
    assert!(busy.contains("wait 600 s"), "{busy}");
    hub.odd("config.json", &[Oddity::Status(429, Some("1")), Oddity::Status(503, None)]);
    hub.pull().await.expect("pulled after a wait");
    for endpoint in ["http://example.com", "ftp://localhost", "not an address"] {
        let options = PullOptions { endpoint: Some(endpoint.to_owned()), ..hub.options() };
        let error = pull(&options, &mut |_: Progress<'_>| {}).await.expect_err("refused").to_string();
        assert!(error.contains("HF_ENDPOINT"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_not_what_was_listed_is_never_given_a_name() {
    let hub = Hub::start("spoilt", &[("config.json", b"{}"), ("model.safetensors", &weights())]).await;
    hub.odd("model.safetensors", &[Oddity::Spoilt]);
    hub.pull().await.expect("the second time it is right");
    hub.assert_whole();
    for path in ["model.safetensors", "config.json"] {
        std::fs::remove_dir_all(hub.to()).expect("removed");
        hub.odd(path, &[Oddity::Spoilt, Oddity::Spoilt]);
        let text = hub.fails().await;
        assert!(text.contains("another content") && text.contains(path), "{text}");
        assert!(!hub.to().exists());
        hub.pull().await.expect("pulled");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_leads_out_of_the_folder_ends_the_pull_before_it_begins() {
    for name in
        ["../outside.json", "/tmp/outside.json", "a/../../outside.json", "C:\\outside.json", "a//b.json"]
    {
        let hub = Hub::start("outside", &[("config.json", b"{}"), (name, b"{}")]).await;
        let text = hub.fails().await;
        assert!(text.contains("outside its folder"), "{name}: {text}");
        assert_eq!(std::fs::read_dir(&hub.folder).expect("a folder").count(), 0, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_says_how_much_is_missing() {
    let hub = Hub::start("full", &[("config.json", b"{}"), ("model.safetensors", &weights())]).await;
    let gathering = hub.to().with_added_extension("pull");
    std::fs::create_dir_all(&gathering).expect("a folder");
    std::os::unix::fs::symlink("/dev/full", gathering.join("model.safetensors.part")).expect("a link");
    let text = hub.fails().await;
    assert!(text.contains("is full; free 3000000 bytes"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_of_others_and_pulls_that_run_are_left_alone() {
    let hub = Hub::start("occupied", &[("config.json", b"{}")]).await;
    std::fs::create_dir_all(hub.to()).expect("a folder");
    let text = hub.fails().await;
    assert!(text.contains("holds something else"), "{text}");
    std::fs::remove_dir_all(hub.to()).expect("removed");
    let gathering = hub.to().with_added_extension("pull");
    std::fs::create_dir_all(&gathering).expect("a folder");
    let lock = std::fs::File::create(gathering.join(".voxlane-pull.lock")).expect("a lock");
    lock.lock().expect("held");
    let text = hub.fails().await;
    assert!(text.contains("another pull"), "{text}");
    drop(lock);
    hub.pull().await.expect("pulled");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_command_pulls_can_be_inspected_and_served_by_its_name() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/models/tiny");
    let hub = Hub::start("command", &[]).await;
    for folder in ["", "speech_tokenizer/", "voices/"] {
        for entry in std::fs::read_dir(tiny.join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8");
                hub.put(&format!("{folder}{name}"), &std::fs::read(&path).expect("a file"));
            }
        }
    }
    let run = |arguments: &'static [&'static str]| {
        let mut command = binary();
        command.args(arguments).env("HF_ENDPOINT", &hub.endpoint).env("XDG_DATA_HOME", &hub.folder);
        command.env_remove("HF_TOKEN");
        tokio::task::spawn_blocking(move || command.output().expect("the binary runs"))
    };
    let speak = &["speak", "Hello.", "--device", "cpu", "--model", "some/model", "--out", "/dev/null/x.wav"];
    let before = run(speak).await.expect("no panic");
    assert!(stderr(&before).contains("voxlane pull some/model"), "{}", stderr(&before));
    let pulled = run(&["pull", "some/model"]).await.expect("no panic");
    let text = String::from_utf8_lossy(&pulled.stdout).into_owned();
    assert_eq!(pulled.status.code(), Some(0), "{}", stderr(&pulled));
    assert!(text.contains("voxlane serve --model") && text.contains("tts-model"), "{text}");
    assert!(stderr(&pulled).contains("100.0%"), "{}", stderr(&pulled));
    let wrong = run(&["pull", "../model"]).await.expect("no panic");
    assert_eq!(wrong.status.code(), Some(2));
    let file = hub.folder.join("hello.wav");
    let mut command = binary();
    command.args(["speak", "Hello.", "--device", "cpu", "--model", "some/model", "--out"]).arg(&file);
    let spoken = command.env("XDG_DATA_HOME", &hub.folder).output().expect("the binary runs");
    assert_eq!(spoken.status.code(), Some(0), "{}", stderr(&spoken));
    assert!(file.metadata().is_ok_and(|found| found.len() > 10_000));
    std::fs::remove_dir_all(&hub.folder).expect("removed");
}
