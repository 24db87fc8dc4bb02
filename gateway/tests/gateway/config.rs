//! The configuration as an operator meets it.

use gateway::config::{Config, ConfigError, KEYS, Kind, Layers, Source};

const SHIPPED: &str = include_str!("../../../config/voxlane.toml");

fn file(text: &str) -> Result<Config, ConfigError> {
    Layers::default().text("voxlane.toml", text).resolve()?.config()
}

/// `config/voxlane.toml` as the table of keys makes it.
fn rendered() -> String {
    let mut text = String::from(
        "# Every key of Voxlane, with its default. Three layers, the later wins: this file (given by\n\
         # --config), the environment (VOXLANE_SECTION_KEY), flags. `voxlane check FILE` shows the result.\n",
    );
    let mut section = "";
    for key in KEYS {
        let (of, name) = key.name.split_once('.').expect("section and name");
        if of != section {
            text.push_str(&format!("\n[{of}]\n"));
            section = of;
        }
        let value = match key.kind {
            Kind::Bool | Kind::Count { .. } => key.default.to_owned(),
            Kind::List(_) if key.default.is_empty() => "[]".to_owned(),
            Kind::List(_) => panic!("no list has a default"),
            Kind::Address | Kind::Choice(_) | Kind::Secret(_) | Kind::Text(_) => format!("{:?}", key.default),
        };
        text.push_str(&format!("# {}: {}\n{name} = {value}\n", key.about, key.kind.expected()));
    }
    text
}

#[test]
fn the_shipped_file_is_the_table_of_keys() {
    if std::env::var_os("UPDATE_CONFIG").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../config/voxlane.toml"), rendered())
            .expect("config/ can be written");
    } else {
        assert_eq!(SHIPPED, rendered(), "run this test once with UPDATE_CONFIG=1");
    }
}

#[test]
fn the_shipped_file_changes_nothing() {
    assert_eq!(file(SHIPPED).expect("valid"), Config::defaults().expect("valid defaults"));
}

#[test]
fn an_unknown_key_names_the_nearest() {
    let error = file("[server]\nlistn = \"127.0.0.1:1\"").expect_err("unknown key");
    let text = error.to_string();
    assert!(text.contains("server.listn") && text.contains("server.listen"), "{text}");
}

#[test]
fn a_wrong_type_names_the_key_and_what_is_expected() {
    let text = file("[opus]\ncomplexity = \"high\"").expect_err("wrong type").to_string();
    assert!(text.contains("opus.complexity") && text.contains("0 to 10"), "{text}");
    let text = file("[opus]\ncomplexity = 11").expect_err("out of bounds").to_string();
    assert!(text.contains("11"), "{text}");
    let text = file("[opus]\ncomplexity = 99999999999999999999").expect_err("over 64 bits").to_string();
    assert!(text.contains("line 2") && text.contains("too large") && !text.contains("i128"), "{text}");
    let text = file("[engine]\nkind = \"magic\"").expect_err("unknown engine").to_string();
    assert!(text.contains("engine.kind") && text.contains("scripted"), "{text}");
}

#[test]
fn broken_toml_names_the_file() {
    assert!(file("[server").expect_err("syntax").to_string().contains("voxlane.toml"));
}

#[test]
fn later_layers_win_and_say_where_they_came_from() {
    let environment =
        [("VOXLANE_OPUS_COMPLEXITY", "3"), ("VOXLANE_OPUS_THREADS", "2"), ("VOXLANE_TYPO", "1")];
    let resolved = Layers::default()
        .text("f.toml", "[opus]\ncomplexity = 1\nbitrate_bps = 24000")
        .environment(environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
        .flag("--listen", "server.listen", "127.0.0.1:9".to_owned())
        .resolve()
        .expect("valid");
    let config = resolved.config().expect("valid");
    assert_eq!((config.opus.complexity, config.opus.threads, config.opus.bitrate_bps), (3, 2, 24_000));
    assert_eq!(config.server.listen.port(), 9);
    assert_eq!(resolved.unknown_variables, ["VOXLANE_TYPO"]);
    let source =
        |name| resolved.lines().find(|(key, _, _)| *key == name).map(|(_, _, source)| source.clone());
    assert_eq!(source("opus.complexity"), Some(Source::Environment("VOXLANE_OPUS_COMPLEXITY".to_owned())));
    assert_eq!(source("opus.bitrate_bps"), Some(Source::File("f.toml".into())));
    assert_eq!(source("server.listen"), Some(Source::Flag("--listen")));
    assert_eq!(source("log.filter"), Some(Source::Default));
}

#[test]
fn the_hash_depends_on_values_and_not_on_where_they_came_from() {
    let hash = |layers: Layers| layers.resolve().expect("valid").hash();
    let plain = hash(Layers::default());
    assert_eq!(plain, hash(Layers::default().text("f.toml", SHIPPED)));
    assert_ne!(plain, hash(Layers::default().text("f.toml", "[opus]\ncomplexity = 1")));
}

/// The files of config/deploy set keys by environment: each name is a key, each value is valid, and every
/// listener that others reach has keys in front.
#[test]
fn the_deployment_examples_set_keys_that_exist_to_values_that_are_valid() {
    let unit = include_str!("../../../config/deploy/voxlane.service");
    let compose = include_str!("../../../config/deploy/compose.yaml");
    let kubernetes = include_str!("../../../config/deploy/kubernetes.yaml");
    let pair = |line: &str, separator: &str| {
        let (name, value) = line.trim().split_once(separator)?;
        let value = value.trim().trim_end_matches('}').trim_matches('"');
        name.starts_with("VOXLANE_").then(|| (name.to_owned(), value.to_owned()))
    };
    let of_unit = unit.lines().filter_map(|line| pair(line.strip_prefix("Environment=")?, "="));
    let of_compose = compose.lines().filter_map(|line| pair(line, ": "));
    let of_kubernetes =
        kubernetes.lines().filter_map(|line| pair(line.trim().strip_prefix("- {name: ")?, ", value: "));
    for (file, variables) in [
        ("voxlane.service", of_unit.collect::<Vec<_>>()),
        ("compose.yaml", of_compose.collect()),
        ("kubernetes.yaml", of_kubernetes.collect()),
    ] {
        assert!(variables.len() >= 6, "{file}: {variables:?}");
        let resolved = Layers::default().environment(variables.into_iter()).resolve();
        let resolved = resolved.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(resolved.unknown_variables.is_empty(), "{file}: {:?}", resolved.unknown_variables);
        let config = resolved.config().unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!config.server.listen.ip().is_loopback() && config.auth.has_keys(), "{file}");
        assert!(config.server.admin.ip().is_loopback() || config.server.admin_remote, "{file}");
    }
}

#[test]
fn a_default_that_a_page_names_is_the_keys_own() {
    let pages = [
        include_str!("../../../docs/elevenlabs-cartesia.md"),
        include_str!("../../../docs/operation.md"),
        include_str!("../../../docs/protocol.md"),
        include_str!("../../../docs/realtime.md"),
        include_str!("../../../docs/security.md"),
        include_str!("../../../docs/speech.md"),
        include_str!("../../../docs/voices.md"),
    ];
    let mut named = 0;
    for key in KEYS {
        let mention = format!("`{}` (", key.name);
        for rest in pages.iter().flat_map(|page| page.split(&mention).skip(1)) {
            let shown = rest.split(')').next().unwrap_or_default().replace(',', "");
            if shown.bytes().all(|byte| byte.is_ascii_digit()) {
                assert_eq!(shown, key.default, "{}", key.name);
                named += 1;
            }
        }
    }
    assert!(named > 0, "no page names a default");
}
