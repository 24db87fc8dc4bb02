use super::super::record::Mode;
use super::*;

pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("voxlane-voices-{}-{name}", std::process::id()));
        drop(std::fs::remove_dir_all(&folder));
        Self(folder)
    }

    pub(super) fn open(&self) -> Store {
        Store::open(&self.0, 3).expect("a folder")
    }

    pub(super) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("a folder");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

pub(super) fn viewer(tenant: &str, subject: &str) -> Viewer {
    Viewer { tenant: tenant.to_owned(), subject: subject.to_owned(), admin: false }
}

pub(super) fn voice(id: &str, name: &str, owner: &Viewer, level: i16) -> NewVoice {
    let samples = (0..24_000).map(|n| if n / 40 % 2 == 0 { level } else { -level }).collect();
    NewVoice {
        record: Record {
            id: id.to_owned(),
            name: name.to_owned(),
            tenant: owner.tenant.clone(),
            subject: owner.subject.clone(),
            sharing: Sharing::Tenant,
            language: None,
            transcript: None,
            mode: Mode::Speaker,
            consent: "yes".to_owned(),
            created_at: 1,
            rate_hz: 0,
            samples: 0,
            sha256: String::new(),
        },
        recording: Recording { rate_hz: 24_000, samples },
    }
}

#[test]
fn a_voice_is_found_again_by_its_tenant_and_by_nobody_else() {
    let folder = Folder::new("found");
    let (ann, bob, eve) = (viewer("acme", "ann"), viewer("acme", "bob"), viewer("evil", "ann"));
    let store = folder.open();
    store.add(voice("v-1", "warm", &ann, 9_000)).expect("kept");
    let mut private = voice("v-2", "mine", &ann, 8_000);
    private.record.sharing = Sharing::Subject;
    store.add(private).expect("kept");
    let mut shared = voice("v-3", "all", &ann, 7_000);
    shared.record.sharing = Sharing::Everyone;
    store.add(shared).expect("kept");
    // Another process, or this one after a restart.
    let store = folder.open();
    let names = |viewer: &Viewer| -> Vec<String> {
        store.list(viewer).into_iter().map(|record| record.name).collect()
    };
    assert_eq!(names(&ann), ["warm", "mine", "all"]);
    assert_eq!(names(&bob), ["warm", "all"]);
    assert_eq!(names(&eve), ["all"]);
    let found = |viewer: &Viewer, name: &str| store.find(viewer, name).map(|record| record.id);
    assert_eq!(found(&bob, "v-1"), found(&bob, "warm"));
    assert_eq!((found(&bob, "v-2"), found(&eve, "v-1"), found(&eve, "warm")), (None, None, None));
    assert!(store.remove(&eve, "v-1", &[]).expect("read").is_none());
    assert!(store.remove(&bob, "v-2", &[]).expect("read").is_none());
    assert!(store.remove(&ann, "v-3", &[]).expect("read").is_none(), "only an admin takes from everyone");
}

#[test]
fn a_clip_comes_back_as_it_went_in_and_a_changed_file_is_refused() {
    let folder = Folder::new("clip");
    let ann = viewer("acme", "ann");
    let new = voice("v-1", "warm", &ann, 9_000);
    let direct = prepare(&new.recording, None, 24_000).expect("a clip");
    let kept = folder.open().add(new).expect("kept");
    let store = folder.open();
    let clip = store.clip(&kept, 24_000).expect("a clip");
    assert_eq!(*clip, direct, "the same samples under the same hash");
    assert!(Arc::ptr_eq(&clip, &store.clip(&kept, 24_000).expect("a clip")), "kept at hand");
    assert_eq!(store.clip(&kept, 16_000).expect("a clip").samples.len(), 16_000);
    let path = folder.0.join("v-1.wav");
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes[1_000] ^= 1;
    std::fs::write(&path, bytes).expect("written");
    assert!(matches!(folder.open().clip(&kept, 24_000), Err(StoreError::Damaged)));
}

#[test]
fn a_tenant_has_a_quota_and_each_name_once() {
    let folder = Folder::new("quota");
    let (ann, eve) = (viewer("acme", "ann"), viewer("evil", "eve"));
    let store = folder.open();
    for at in 0..3 {
        store.add(voice(&format!("v-{at}"), &format!("n{at}"), &ann, 9_000)).expect("kept");
    }
    assert!(matches!(store.add(voice("v-9", "n9", &ann, 9_000)), Err(StoreError::Quota { kept: 3 })));
    store.add(voice("v-8", "n0", &eve, 9_000)).expect("another tenant's");
    // The clip is another voice's too, so engines keep what they made of it.
    let gone = store.remove(&ann, "v-0", &[24_000]).expect("read").expect("theirs");
    assert!(gone.hashes.is_empty());
    assert!(matches!(store.add(voice("v-9", "n1", &ann, 9_000)), Err(StoreError::Exists)));
    store.add(voice("v-9", "n0", &ann, 5_000)).expect("room again");
    let gone = store.remove(&ann, "v-9", &[24_000]).expect("read").expect("theirs");
    assert_eq!(gone.hashes.len(), 1);
    assert!(!folder.files().contains(&"v-9.wav".to_owned()));
}

#[test]
fn processes_that_share_a_folder_see_each_others_changes_and_lose_none() {
    let folder = Folder::new("shared");
    let path = folder.0.clone();
    let stores: Vec<Store> = (0..4).map(|_| Store::open(&path, 1_000).expect("a folder")).collect();
    // Each has a lock of its own on the file, as processes do.
    std::thread::scope(|scope| {
        for (at, store) in stores.iter().enumerate() {
            scope.spawn(move || {
                let owner = viewer(&format!("t{at}"), "s");
                for count in 0..8 {
                    let id = format!("v-{at}-{count}");
                    store.add(voice(&id, &id, &owner, 9_000)).expect("kept");
                    if count % 4 == 3 {
                        store.remove(&owner, &id, &[]).expect("read").expect("theirs");
                    }
                }
            });
        }
    });
    for at in 0..4 {
        let owner = viewer(&format!("t{at}"), "s");
        for store in &stores {
            assert_eq!(store.list(&owner).len(), 6);
        }
    }
}

/// Everything a crash can leave: a temporary clip cut anywhere, a clip that no list names, a temporary list
/// cut anywhere, a removed entry whose clip is still there.
#[test]
fn a_crash_at_any_byte_of_a_change_leaves_the_old_list_or_the_new_one() {
    let folder = Folder::new("crash");
    let ann = viewer("acme", "ann");
    folder.open().add(voice("v-1", "old", &ann, 9_000)).expect("kept");
    let before = std::fs::read(folder.0.join("manifest.json")).expect("a list");
    let clip = std::fs::read(folder.0.join("v-1.wav")).expect("a clip");
    folder.open().add(voice("v-2", "new", &ann, 8_000)).expect("kept");
    let after = std::fs::read(folder.0.join("manifest.json")).expect("a list");
    let holds = |names: &[&str], what: &str| {
        let store = folder.open();
        let listed = store.list(&ann);
        let found: Vec<&str> = listed.iter().map(|record| record.name.as_str()).collect();
        assert_eq!(found, names, "{what}");
        for record in &listed {
            assert!(store.clip(record, 24_000).is_ok(), "{what}: {}", record.name);
        }
        let files: Vec<String> = folder.files();
        assert!(files.iter().all(|name| !name.starts_with(".new-")), "{what}: {files:?}");
        assert_eq!(
            files.iter().filter(|name| name.ends_with(".wav")).count(),
            names.len(),
            "{what}: {files:?}"
        );
    };
    let step = |bytes: &[u8]| 1 + bytes.len() / 40;
    for end in (0..=clip.len()).step_by(step(&clip)) {
        std::fs::write(folder.0.join(".new-v-3.wav"), &clip[..end]).expect("written");
        holds(&["old", "new"], "a clip half written");
    }
    std::fs::write(folder.0.join("v-3.wav"), &clip).expect("written");
    for end in 0..=after.len() {
        std::fs::write(folder.0.join(".new-manifest.json"), &after[..end]).expect("written");
        holds(&["old", "new"], "a list half written");
    }
    // The list has lost a voice whose clip is still there.
    std::fs::write(folder.0.join("manifest.json"), &before).expect("written");
    holds(&["old"], "a removal half done");
}

#[test]
fn a_list_of_another_version_or_of_nonsense_is_refused_and_left_alone() {
    let folder = Folder::new("version");
    drop(folder.open());
    for (text, says) in [
        ("{\"format\":\"voxlane-voices\",\"version\":2,\"voices\":[]}", "version 2"),
        // Of a later version, whose voices are told otherwise.
        ("{\"format\":\"voxlane-voices\",\"version\":3,\"voices\":{\"v-1\":[1]}}", "version 3"),
        ("{\"format\":\"voxlane-voices\",\"version\":3}", "version 3"),
        ("{\"format\":\"voxlane-voices\",\"version\":1,\"voices\":[{}]}", "missing field"),
        ("{}", "missing field"),
        ("[", "EOF"),
        ("", "EOF"),
    ] {
        std::fs::write(folder.0.join("manifest.json"), text).expect("written");
        let Err(error @ StoreError::Manifest { .. }) = Store::open(&folder.0, 3) else { panic!("{text}") };
        assert!(error.to_string().contains(says), "{text}: {error}");
        assert_eq!(std::fs::read_to_string(folder.0.join("manifest.json")).expect("read"), text);
    }
}

/// A folder stands where the file should come: what a disk that takes nothing more looks like.
#[test]
fn a_change_that_cannot_be_written_leaves_nothing_behind() {
    let folder = Folder::new("full");
    let ann = viewer("acme", "ann");
    let store = folder.open();
    store.add(voice("v-1", "old", &ann, 9_000)).expect("kept");
    let before = folder.files();
    std::fs::create_dir(folder.0.join(".new-manifest.json")).expect("made");
    assert!(matches!(store.add(voice("v-2", "new", &ann, 8_000)), Err(StoreError::Io { .. })));
    std::fs::remove_dir(folder.0.join(".new-manifest.json")).expect("removed");
    assert_eq!(folder.files(), before, "neither clip nor list");
    assert_eq!(store.list(&ann).len(), 1);
    std::fs::create_dir_all(folder.0.join("v-3.wav/in the way")).expect("made");
    assert!(matches!(store.add(voice("v-3", "new", &ann, 8_000)), Err(StoreError::Io { .. })));
    assert!(folder.files().iter().all(|name| !name.starts_with(".new-")), "{:?}", folder.files());
}

#[test]
fn a_list_that_could_not_be_read_again_is_not_written() {
    let folder = Folder::new("long");
    let store = folder.open();
    let mut new = voice("v-1", "warm", &viewer("acme", "ann"), 9_000);
    new.record.consent = "x".repeat(65 << 20);
    assert!(matches!(store.add(new), Err(StoreError::Full)));
    assert_eq!(folder.files(), ["lock", "manifest.json"], "nothing of it is left");
    assert!(folder.open().current().is_empty());
}
