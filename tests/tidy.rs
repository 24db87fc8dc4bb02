//! The project's own rules, read from its own files: who imports whom, where clocks, unsafe code and
//! queues may stand, what every dependency is for, which licences come along.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use system_tests::{files, relative, root};

/// Workspace crates each crate may import (ARCHITECTURE.md, "Who may import whom").
const IMPORTS: &[(&str, &str, &[&str])] = &[
    ("contract", "engine/contract", &[]),
    ("sched", "engine/sched", &["contract"]),
    ("device", "engine/device", &["contract"]),
    ("cpu", "engine/cpu", &["contract", "device"]),
    ("models", "engine/models", &["contract", "device"]),
    ("cuda", "engine/cuda", &["contract", "device"]),
    ("runtime", "engine/runtime", &["contract", "sched", "device", "models", "cpu", "cuda"]),
    ("scripted", "engine/scripted", &["contract"]),
    ("codecs", "codecs", &["contract"]),
    ("ear", "gateway/ear", &[]),
    ("proto", "gateway/proto", &["contract", "codecs", "ear"]),
    ("client", "gateway/client", &["proto", "codecs"]),
    ("load", "gateway/load", &["contract", "sched", "proto", "codecs", "client", "scripted"]),
    ("gateway", "gateway", &["contract", "runtime", "scripted", "ear", "proto", "codecs", "client", "load"]),
];

/// External crates that would break what a crate promises.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("contract", &["serde", "serde_json", "tokio", "cudarc"]),
    ("sched", &["tokio", "rand", "dashmap", "serde"]),
    ("device", &["tokio", "cudarc"]),
    ("cpu", &["tokio"]),
    ("models", &["tokio", "cudarc"]),
    ("runtime", &["axum", "tokio", "hyper"]),
    ("codecs", &["tokio"]),
    ("ear", &["tokio", "serde"]),
    ("proto", &["tokio", "axum"]),
    ("load", &["axum"]),
];

/// Files longer than [`LINES_MAX`], each with its reason.
const LONG_FILES: &[(&str, &str)] = &[];
const LINES_MAX: usize = 500;

/// Files that may read a clock, each with its reason.
const CLOCKS: &[(&str, &str)] = &[
    ("engine/runtime/src/clock.rs", "the engine loop's clock"),
    ("gateway/src/clock.rs", "the gateway's drive loop"),
    ("gateway/load/src/clock.rs", "the generator is outside the server and has a clock of its own"),
    ("gateway/client/src/utterance.rs", "a client is outside the server and has a clock of its own"),
];

fn manifest(folder: &str) -> toml::Table {
    let path = root().join(folder).join("Cargo.toml");
    std::fs::read_to_string(&path).expect("manifest reads").parse().expect("manifest parses")
}

fn dependencies(manifest: &toml::Table, section: &str) -> BTreeSet<String> {
    manifest
        .get(section)
        .and_then(toml::Value::as_table)
        .map(|t| t.keys().cloned().collect())
        .unwrap_or_default()
}

#[test]
fn every_crate_imports_only_what_the_table_allows() {
    let ours: BTreeSet<&str> = IMPORTS.iter().map(|(name, ..)| *name).collect();
    for (name, folder, allowed) in IMPORTS {
        let found = dependencies(&manifest(folder), "dependencies");
        for dependency in found.iter().filter(|d| ours.contains(d.as_str())) {
            assert!(allowed.contains(&dependency.as_str()), "{name} must not import {dependency}");
        }
    }
    for (name, forbidden) in FORBIDDEN {
        let (_, folder, _) = IMPORTS.iter().find(|(n, ..)| n == name).expect("listed");
        for dependency in dependencies(&manifest(folder), "dependencies") {
            assert!(!forbidden.contains(&dependency.as_str()), "{name} must not depend on {dependency}");
        }
    }
}

#[test]
fn every_workspace_member_is_in_the_import_table() {
    let workspace = manifest(".");
    let members = workspace["workspace"]["members"].as_array().expect("members");
    let known: BTreeSet<&str> = IMPORTS.iter().map(|(_, folder, _)| *folder).chain(["tests"]).collect();
    for member in members.iter().filter_map(toml::Value::as_str) {
        assert!(known.contains(member), "{member} is missing from the import table");
    }
}

#[test]
fn every_external_dependency_has_a_line_of_why() {
    let text = std::fs::read_to_string(root().join("Cargo.toml")).expect("reads");
    let section = text.split("[workspace.dependencies]").nth(1).expect("section");
    let section = section.split("\n[").next().expect("section end");
    let mut reasoned_above = false;
    for line in section.lines().map(str::trim) {
        if line.is_empty() {
            reasoned_above = false;
        } else if line.starts_with('#') {
            reasoned_above = line.contains(':');
        } else if !line.contains("path = ") {
            let has_reason = line.split_once('#').is_some_and(|(_, why)| why.trim().len() > 10);
            assert!(has_reason || reasoned_above, "no reason beside: {line}");
        }
    }
}

#[test]
fn members_take_versions_from_the_workspace_only() {
    for (name, folder, _) in IMPORTS {
        let manifest = manifest(folder);
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else { continue };
            for (dependency, value) in table {
                let inherited = value.as_table().and_then(|t| t.get("workspace")).is_some();
                assert!(inherited, "{name}: {dependency} must say workspace = true");
            }
        }
    }
}

#[test]
fn files_are_read_in_one_sitting() {
    let listed: BTreeMap<&str, &str> = LONG_FILES.iter().copied().collect();
    for folder in ["engine", "codecs", "gateway", "tests", "web"] {
        for path in files(folder, &[".rs", ".js", ".py", ".cu"]) {
            let name = relative(&path);
            let lines = std::fs::read_to_string(&path).expect("reads").lines().count();
            let long = lines > LINES_MAX;
            assert!(!long || listed.contains_key(name.as_str()), "{name} has {lines} lines");
            assert!(long || !listed.contains_key(name.as_str()), "{name} is short again: unlist it");
        }
    }
}

#[test]
fn only_the_listed_clock_modules_read_a_clock() {
    for path in sources() {
        let name = relative(&path);
        if CLOCKS.iter().any(|(allowed, _)| name == *allowed) {
            continue;
        }
        for (number, line) in product_lines(&path) {
            for needle in ["Instant::now", "SystemTime::now"] {
                assert!(!line.contains(needle), "{name}:{number} reads a clock: {line}");
            }
        }
    }
}

#[test]
fn unsafe_code_stands_only_in_the_backends() {
    for path in sources() {
        let name = relative(&path);
        if name.starts_with("engine/cpu/") || name.starts_with("engine/cuda/") {
            continue;
        }
        for (number, line) in product_lines(&path) {
            let code = line.split("//").next().unwrap_or("");
            assert!(!code.contains("unsafe {") && !code.contains("unsafe fn"), "{name}:{number}: {line}");
        }
    }
}

#[test]
fn no_queue_is_unbounded_and_nothing_is_left_unfinished() {
    let banned = [
        ("unbounded_channel", "give the queue a bound"),
        ("mpsc::channel::<", "std's channel has no bound; use sync_channel"),
        ("todo!(", "finish it"),
        ("unimplemented!(", "finish it"),
        ("#[ignore", "fix it or assert today's answer"),
    ];
    for path in sources() {
        for (number, line) in std::fs::read_to_string(&path).expect("reads").lines().enumerate() {
            for (needle, why) in banned {
                assert!(!line.contains(needle), "{}:{}: {needle}: {why}", relative(&path), number + 1);
            }
        }
    }
}

#[test]
fn licences_and_second_copies_obey_deny_toml() {
    let deny: toml::Table =
        std::fs::read_to_string(root().join("deny.toml")).expect("reads").parse().expect("parses");
    let list = |section: &str, key: &str| -> BTreeSet<String> {
        let values = deny[section][key].as_array().expect("array");
        values.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect()
    };
    let (allowed, single) = (list("licenses", "allow"), list("bans", "deny-multiple"));
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", &platform])
        .current_dir(root())
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("name");
        versions.entry(name).or_default().insert(package["version"].as_str().expect("version"));
        let licence = package["license"].as_str().unwrap_or("");
        assert!(licence_allowed(licence, &allowed), "{name}: licence {licence:?} is not in deny.toml");
    }
    for name in single {
        let copies = versions.get(name.as_str()).map_or(0, BTreeSet::len);
        assert!(copies <= 1, "{copies} copies of {name}: {:?}", versions[name.as_str()]);
    }
}

#[test]
fn every_test_named_in_the_invariants_exists() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("reads");
    let section = page.split("## Invariants").nth(1).expect("a section of invariants");
    let named: Vec<&str> = section
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.matches('_').count() >= 3 && !word.contains('/'))
        .collect();
    assert!(named.len() >= 9, "each invariant names a test");
    let mut sources = String::new();
    for folder in ["engine", "codecs", "gateway", "tests"] {
        for path in files(folder, &[".rs"]) {
            sources.push_str(&std::fs::read_to_string(&path).expect("reads"));
        }
    }
    for name in named {
        assert!(
            sources.contains(&format!("fn {name}(")),
            "ARCHITECTURE.md names {name}, which no test is called"
        );
    }
}

#[test]
fn every_error_code_stands_in_the_protocol_page_and_every_code_of_the_page_is_sent() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).expect("reads");
    let mut sent = BTreeSet::new();
    for name in ["engine/contract/src/error.rs", "gateway/proto/src/wire/error.rs"] {
        let source = read(name);
        let body = source.split("pub const fn code(&self)").nth(1).expect("a table of codes");
        let body = body.split("\n    }\n").next().expect("its end");
        sent.extend(body.split("=> \"").skip(1).filter_map(|rest| Some(rest.split('"').next()?.to_owned())));
    }
    let from_errors = sent.len();
    for path in sources().iter().filter(|path| relative(path).starts_with("gateway/src/")) {
        let code: String =
            product_lines(path).into_iter().map(|(_, line)| line.trim().to_owned() + " ").collect();
        // A code follows a status, or is the first argument of a bad request.
        let after_status = code.split("StatusCode::").skip(1).filter_map(|rest| rest.split_once(", \""));
        let after_status = after_status
            .filter(|(status, _)| status.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'));
        let bad = code.split("bad_request(").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
        for rest in after_status.map(|(_, rest)| rest).chain(bad) {
            sent.extend(rest.split('"').next().map(str::to_owned));
        }
    }
    assert!(from_errors >= 35 && sent.len() >= from_errors + 12, "{from_errors} and {}", sent.len());
    let page = read("docs/protocol.md");
    let section = page.split("## 9. Errors").nth(1).and_then(|rest| rest.split("\n## ").next());
    let mut stated = BTreeSet::new();
    let rows = section.expect("a section of errors").lines().filter(|line| line.starts_with("| `"));
    for row in rows.filter(|row| !row.contains("_error`") && !row.contains("reserved")) {
        let codes = row.split('|').nth(1).expect("a first cell").split('`').skip(1).step_by(2);
        stated.extend(codes.map(str::to_owned));
    }
    let unstated: Vec<_> = sent.difference(&stated).collect();
    assert!(unstated.is_empty(), "docs/protocol.md section 9 lacks {unstated:?}");
    let unsent: Vec<_> = stated.difference(&sent).collect();
    assert!(unsent.is_empty(), "docs/protocol.md section 9 names {unsent:?}, which nothing sends");
}

#[test]
fn the_figures_of_the_page_are_those_of_the_json() {
    let checked = Command::new("python3")
        .args(["tests/bench/render.py", "--check"])
        .current_dir(root())
        .output()
        .expect("python3 runs (the tests need it; see tests/needs.sh)");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

/// `A OR B` needs one side, `A AND B` both; `/` is the old spelling of OR.
fn licence_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let plain = expression.replace(['(', ')'], " ").replace('/', " OR ");
    plain.split(" AND ").all(|part| part.split(" OR ").any(|one| allowed.contains(one.trim())))
}

/// Rust sources of the product: no tests, benches or examples.
fn sources() -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for folder in ["engine", "codecs", "gateway"] {
        all.extend(files(folder, &[".rs"]).into_iter().filter(|p| {
            let name = relative(p);
            !["/tests/", "/tests.rs", "/benches/", "/examples/"].iter().any(|part| name.contains(part))
        }));
    }
    all
}

/// Lines before the file's test module, numbered from 1, comments left out.
fn product_lines(path: &std::path::Path) -> Vec<(usize, String)> {
    let text = std::fs::read_to_string(path).expect("reads");
    let product = text.split("#[cfg(test)]").next().unwrap_or("");
    product
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .map(|(index, line)| (index + 1, line.to_owned()))
        .collect()
}
