//! A disk that fails at any one step: what was kept stays kept, what was not leaves nothing behind for long.

use std::fs::File;
use std::io::{Error, ErrorKind, Result as IoResult};
use std::sync::atomic::AtomicUsize;

use super::tests::{Folder, viewer, voice};
use super::*;

/// One step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    MakeFolder,
    Lock,
    Read,
    Write,
    Rename,
    FlushFolder,
    Remove,
    Names,
}

/// The machine's own disk, which fails steps as it is told.
#[derive(Clone, Default)]
struct Faulty(Arc<Plan>);

#[derive(Default)]
struct Plan {
    /// Steps of changes since the plan was made.
    steps: Mutex<Vec<Step>>,
    /// The step that fails by its number, and whether all after it do.
    fails: Mutex<Option<(usize, bool, ErrorKind)>>,
    at: AtomicUsize,
}

impl Faulty {
    fn fail(&self, from: usize, all_after: bool, kind: ErrorKind) {
        self.0.at.store(0, Ordering::Relaxed);
        self.0.steps.lock().expect("no panic").clear();
        *self.0.fails.lock().expect("no panic") = Some((from, all_after, kind));
    }

    fn mend(&self) -> Vec<Step> {
        *self.0.fails.lock().expect("no panic") = None;
        std::mem::take(&mut *self.0.steps.lock().expect("no panic"))
    }

    fn step(&self, step: Step) -> IoResult<()> {
        let at = self.0.at.fetch_add(1, Ordering::Relaxed);
        self.0.steps.lock().expect("no panic").push(step);
        match *self.0.fails.lock().expect("no panic") {
            Some((from, all_after, kind)) if at == from || (all_after && at > from) => Err(Error::from(kind)),
            _ => Ok(()),
        }
    }
}

impl Disk for Faulty {
    fn make_folder(&self, folder: &Path) -> IoResult<()> {
        self.step(Step::MakeFolder)?;
        Os.make_folder(folder)
    }

    fn lock(&self, path: &Path) -> IoResult<File> {
        self.step(Step::Lock)?;
        Os.lock(path)
    }

    fn stamp(&self, path: &Path) -> IoResult<Stamp> {
        Os.stamp(path)
    }

    fn read(&self, path: &Path, bytes_max: u64) -> IoResult<Vec<u8>> {
        self.step(Step::Read)?;
        Os.read(path, bytes_max)
    }

    /// A disk that is full takes some of it.
    fn write(&self, path: &Path, bytes: &[u8]) -> IoResult<()> {
        let fails = self.step(Step::Write);
        Os.write(path, &bytes[..if fails.is_err() { bytes.len() / 2 } else { bytes.len() }])?;
        fails
    }

    fn rename(&self, from: &Path, to: &Path) -> IoResult<()> {
        self.step(Step::Rename)?;
        Os.rename(from, to)
    }

    /// What was renamed is so, only a crash may undo it.
    fn flush_folder(&self, folder: &Path) -> IoResult<()> {
        self.step(Step::FlushFolder)?;
        Os.flush_folder(folder)
    }

    fn remove(&self, path: &Path) -> IoResult<()> {
        self.step(Step::Remove)?;
        Os.remove(path)
    }

    fn names(&self, folder: &Path) -> IoResult<Vec<String>> {
        self.step(Step::Names)?;
        Os.names(folder)
    }
}

fn opened(folder: &Folder) -> (Faulty, Store) {
    let disk = Faulty::default();
    let store = Store::open_on(Box::new(disk.clone()), &folder.0, 9).expect("a folder");
    disk.mend();
    (disk, store)
}

/// Every voice of the list speaks, here and in a process that opens the folder now; nothing else lies there.
#[track_caller]
fn whole(folder: &Folder, store: &Store, names: &[&str]) {
    let ann = viewer("acme", "ann");
    for store in [&folder.open(), store] {
        let listed = store.list(&ann);
        let found: Vec<&str> = listed.iter().map(|record| record.name.as_str()).collect();
        assert_eq!(found, names);
        for record in &listed {
            assert!(store.clip(record, 24_000).is_ok(), "{}", record.name);
        }
    }
    let files = folder.files();
    assert!(files.iter().all(|name| !name.starts_with(".new-")), "{files:?}");
    assert_eq!(files.iter().filter(|name| name.ends_with(".wav")).count(), names.len(), "{files:?}");
}

/// The clip is the list's from the rename on, though the change is answered by an error.
#[test]
fn the_clip_of_a_listed_voice_stays_when_only_the_folders_flush_failed() {
    let folder = Folder::new("flush");
    let (disk, store) = opened(&folder);
    let ann = viewer("acme", "ann");
    // Lock, read; clip: write, rename, flush; list: write, rename, flush. Only that: the clip could be removed.
    disk.fail(7, false, ErrorKind::Other);
    assert!(matches!(store.add(voice("v-1", "warm", &ann, 9_000)), Err(StoreError::Unflushed { .. })));
    let steps = disk.mend();
    assert_eq!((steps[6], steps[7]), (Step::Rename, Step::FlushFolder));
    whole(&folder, &store, &["warm"]);
    // Tried again, it says so.
    assert!(matches!(store.add(voice("v-2", "warm", &ann, 9_000)), Err(StoreError::Exists)));
    // The flush of the clip's own name: no list has it, so it goes.
    disk.fail(4, false, ErrorKind::Other);
    assert!(matches!(store.add(voice("v-3", "cold", &ann, 8_000)), Err(StoreError::Unflushed { .. })));
    assert_eq!(disk.mend()[4], Step::FlushFolder);
    assert!(!folder.files().contains(&"v-3.wav".to_owned()));
    whole(&folder, &store, &["warm"]);
}

#[test]
fn a_disk_that_fails_at_any_step_of_keeping_a_voice_keeps_it_whole_or_not_at_all() {
    let mut failed = 0;
    for kind in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied] {
        for all_after in [false, true] {
            for at in 0.. {
                let folder = Folder::new("add");
                let (disk, store) = opened(&folder);
                let ann = viewer("acme", "ann");
                store.add(voice("v-1", "old", &ann, 9_000)).expect("kept");
                disk.fail(at, all_after, kind);
                let outcome = store.add(voice("v-2", "new", &ann, 8_000));
                let steps = disk.mend();
                let Err(error) = outcome else {
                    assert!(steps.len() <= at || at == 8, "every step that fails is told: {steps:?}");
                    break;
                };
                failed += 1;
                assert!(matches!(error, StoreError::Io { .. } | StoreError::Unflushed { .. }), "{error}");
                assert!(store.faults() >= 1);
                let names = store.list(&ann).len();
                assert_eq!(names == 2, at == 7, "it is kept from the list's rename on: {steps:?}");
                // What is left lies until the next change that succeeds, or the next start.
                store.add(voice("v-3", "next", &ann, 7_000)).expect("kept");
                let names: &[&str] = if at == 7 { &["old", "new", "next"] } else { &["old", "next"] };
                assert_eq!(folder.files().iter().filter(|name| name.ends_with(".wav")).count(), names.len());
                whole(&folder, &store, names);
            }
        }
    }
    assert_eq!(failed, 3 * 2 * 8);
}

#[test]
fn a_disk_that_fails_at_any_step_of_forgetting_a_voice_never_lists_one_without_its_clip() {
    for all_after in [false, true] {
        let mut unfinished = 0;
        for at in 0.. {
            let folder = Folder::new("remove");
            let (disk, store) = opened(&folder);
            let ann = viewer("acme", "ann");
            store.add(voice("v-1", "old", &ann, 9_000)).expect("kept");
            store.add(voice("v-2", "new", &ann, 8_000)).expect("kept");
            disk.fail(at, all_after, ErrorKind::Other);
            let outcome = store.remove(&ann, "v-2", &[24_000]);
            let steps = disk.mend();
            match outcome {
                Err(error) => {
                    assert!(matches!(error, StoreError::Io { .. }), "{error}");
                    whole(&folder, &store, &["old", "new"]);
                }
                Ok(gone) => {
                    let gone = gone.expect("theirs");
                    assert_eq!(store.list(&ann).len(), 1);
                    if gone.unfinished.is_none() {
                        // Reading the clip for its hash may have failed, and with it what engines forget.
                        assert!(steps.len() <= at || steps[at] == Step::Read, "{steps:?}");
                        whole(&folder, &store, &["old"]);
                        if steps.len() <= at {
                            break;
                        }
                        continue;
                    }
                    unfinished += 1;
                    assert_eq!(gone.hashes.len(), 1, "engines forget it all the same");
                    assert!(folder.files().contains(&"v-2.wav".to_owned()), "{steps:?}");
                    store.add(voice("v-3", "next", &ann, 7_000)).expect("kept");
                    assert!(!folder.files().contains(&"v-2.wav".to_owned()), "swept with the next change");
                    whole(&folder, &store, &["old", "next"]);
                }
            }
        }
        assert_eq!(unfinished, 2, "the folder's flush, and the clip itself");
    }
}

#[test]
fn a_start_on_a_disk_that_fails_says_what_to_do_and_changes_nothing() {
    let folder = Folder::new("start");
    let ann = viewer("acme", "ann");
    folder.open().add(voice("v-1", "old", &ann, 9_000)).expect("kept");
    let before = folder.files();
    for at in 0..4 {
        let disk = Faulty::default();
        disk.fail(at, true, ErrorKind::ReadOnlyFilesystem);
        let opened = Store::open_on(Box::new(disk.clone()), &folder.0, 9);
        let Err(error) = opened else { panic!("{at}: {:?}", disk.mend()) };
        assert!(error.to_string().contains("cannot ") && error.advice().contains("write to"), "{error}");
        assert_eq!(folder.files(), before);
    }
    // A file stands where the folder, or a folder above it, should be.
    let file = folder.0.join("manifest.json");
    for path in [file.clone(), file.join("voices")] {
        let Err(error) = Store::open(&path, 9) else { panic!("{}", path.display()) };
        assert!(error.to_string().contains("cannot make"), "{error}");
    }
}

#[test]
fn voices_are_served_on_while_their_folder_is_away_and_none_is_lost_by_it() {
    let folder = Folder::new("away");
    let store = folder.open();
    let ann = viewer("acme", "ann");
    let at_hand = store.add(voice("v-1", "at hand", &ann, 9_000)).expect("kept");
    let unread = store.add(voice("v-2", "unread", &ann, 8_000)).expect("kept");
    store.clip(&at_hand, 24_000).expect("a clip");
    let elsewhere = folder.0.with_extension("elsewhere");
    std::fs::rename(&folder.0, &elsewhere).expect("moved");
    // Gone; then in its place an empty folder, as a disk that is not mounted leaves one.
    for empty in [false, true] {
        if empty {
            std::fs::create_dir(&folder.0).expect("made");
        }
        assert_eq!(store.list(&ann).len(), 2);
        assert_eq!(store.find(&ann, "at hand").map(|record| record.id).as_deref(), Some("v-1"));
        assert!(store.clip(&at_hand, 24_000).is_ok());
        assert!(matches!(store.clip(&unread, 24_000), Err(StoreError::Io { what: "read", .. })));
        let kept = store.add(voice("v-3", "new", &ann, 7_000));
        assert!(matches!(kept, Err(StoreError::Io { .. })), "no list is begun anew");
        assert!(matches!(store.remove(&ann, "v-1", &[]), Err(StoreError::Io { .. })));
        assert_eq!(store.list(&ann).len(), 2);
    }
    assert!(store.faults() >= 5);
    std::fs::remove_dir_all(&folder.0).expect("removed");
    std::fs::rename(&elsewhere, &folder.0).expect("moved back");
    store.add(voice("v-3", "new", &ann, 7_000)).expect("kept");
    whole(&folder, &store, &["at hand", "unread", "new"]);
}

/// A list that is missing was lost, or the folder is somebody's music.
#[test]
fn sounds_that_no_list_names_are_never_swept_from_a_folder_without_a_list() {
    let folder = Folder::new("music");
    std::fs::create_dir_all(&folder.0).expect("made");
    std::fs::write(folder.0.join("song.wav"), "a song").expect("written");
    let Err(error @ StoreError::Unlisted { .. }) = Store::open(&folder.0, 9) else { panic!("opened") };
    assert!(error.to_string().contains("song.wav") && error.advice().contains("manifest.json"), "{error}");
    assert_eq!(folder.files(), ["lock", "song.wav"]);
    std::fs::remove_file(folder.0.join("song.wav")).expect("removed");
    std::fs::remove_file(folder.0.join("lock")).expect("removed");
    std::fs::remove_dir(&folder.0).expect("removed");
    let store = folder.open();
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(&folder.0).expect("a folder").permissions(),
    );
    assert_eq!(mode & 0o777, 0o700, "voices are nobody else's to read");
    store.add(voice("v-1", "warm", &viewer("acme", "ann"), 9_000)).expect("kept");
    // What somebody puts beside ours later is not ours either.
    std::fs::write(folder.0.join("song.wav"), "a song").expect("written");
    drop(folder.open());
    assert!(folder.files().contains(&"song.wav".to_owned()));
    std::fs::remove_file(folder.0.join("manifest.json")).expect("removed");
    assert!(matches!(Store::open(&folder.0, 9), Err(StoreError::Unlisted { .. })));
    assert!(folder.files().contains(&"v-1.wav".to_owned()), "kept for when the list is back");
}
