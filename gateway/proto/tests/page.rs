//! docs/protocol.md is the wire's one home: its examples parse, and its tables name what the code has.

use proto::wire::{ClientMessage, CloseCode, Incoming, ServerMessage};

const PAGE: &str = include_str!("../../../docs/protocol.md");

/// Lines of the conversation of section 1 that go in one direction.
fn lines(mark: &str) -> Vec<&'static str> {
    PAGE.lines().filter_map(|line| line.strip_prefix(mark)).filter(|line| line.starts_with('{')).collect()
}

#[test]
fn the_examples_of_the_client_are_read_by_the_server() {
    let examples = lines("C> ");
    assert!(examples.len() >= 7, "{examples:?}");
    for example in examples {
        let read =
            Incoming::decode(example).unwrap_or_else(|refused| panic!("{example}: {:?}", refused.error));
        assert!(!matches!(read.message, ClientMessage::Resume(_)));
    }
    let resume = PAGE.lines().find(|line| line.starts_with(r#"{"type":"resume""#)).unwrap();
    assert!(matches!(Incoming::decode(resume).unwrap().message, ClientMessage::Resume(_)));
}

#[test]
fn the_examples_of_the_server_are_read_by_a_client() {
    let mut examples = lines("S> ");
    examples.extend(PAGE.lines().filter(|line| {
        line.starts_with(r#"{"type":"cancelled""#) || line.starts_with(r#"{"type":"resumed""#)
    }));
    let usage = PAGE.lines().find_map(|line| line.strip_prefix("`usage` example: `")).unwrap();
    let usage = usage.trim_end_matches("`.").to_owned();
    let mut kinds = 0;
    for example in examples.iter().filter(|example| !example.contains("\"ready\"")) {
        let whole = example.replace(r#"{"characters":13, ...}"#, &usage);
        let message = ServerMessage::from_json(&whole).unwrap_or_else(|error| panic!("{whole}: {error}"));
        assert_ne!(message, ServerMessage::Unknown, "{whole}");
        kinds += 1;
    }
    assert!(kinds >= 7);
    let error: String =
        PAGE.lines().skip_while(|line| !line.starts_with(r#"{"type":"error""#)).take(2).collect();
    assert!(matches!(ServerMessage::from_json(&error), Ok(ServerMessage::Error(_))), "{error}");
}

#[test]
fn every_close_code_of_the_code_stands_in_its_table() {
    for code in CloseCode::ALL {
        assert!(PAGE.contains(&format!("| {} |", code.code())), "{code:?}");
        assert_eq!(CloseCode::from_code(code.code()), Some(code));
    }
}

#[test]
fn every_error_code_of_the_code_stands_in_its_table() {
    let sources =
        [include_str!("../src/wire/error.rs"), include_str!("../../../engine/contract/src/error.rs")];
    let mut found = 0;
    for source in sources {
        let body = source.split("pub const fn code(&self)").nth(1).unwrap();
        let body = body.split("\n    }\n").next().unwrap();
        for code in body.split("=> \"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            assert!(PAGE.contains(&format!("`{code}`")), "{code}");
            found += 1;
        }
    }
    assert!(found >= 40, "{found}");
}

#[test]
fn every_field_and_type_of_the_client_stands_in_its_tables() {
    let messages =
        ["cancel", "hello", "open", "ping", "playback", "resume", "text.append", "text.end", "text.flush"];
    for kind in messages {
        let refused = Incoming::decode(&format!(r#"{{"type":"{kind}","no_such_field":1}}"#)).unwrap_err();
        let proto::wire::WireError::UnknownField { known, .. } = &refused.error else {
            panic!("{kind}: {:?}", refused.error)
        };
        assert!(PAGE.contains(&format!("`{kind}`")), "{kind}");
        for field in *known {
            assert!(
                PAGE.contains(&format!("`{field}`"))
                    || PAGE.contains(&format!("`{field}."))
                    || PAGE.contains(&format!("\"{field}\"")),
                "{kind}.{field}"
            );
        }
    }
}

#[test]
fn every_error_code_of_the_realtime_dialect_stands_in_its_page_and_no_other() {
    const REALTIME: &str = include_str!("../../../docs/realtime.md");
    let sources = [
        include_str!("../src/realtime/mod.rs"),
        include_str!("../src/realtime/client.rs"),
        include_str!("../src/realtime/conversation.rs"),
        include_str!("../src/realtime/hearing.rs"),
        include_str!("../src/realtime/input.rs"),
        include_str!("../src/realtime/settings.rs"),
    ];
    let mut sent = std::collections::BTreeSet::new();
    for source in sources {
        for call in ["Mistake::new(", "absent("] {
            let codes = source.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
            sent.extend(codes.filter_map(|rest| rest.split('"').next()));
        }
    }
    let section = REALTIME.split("## 7. Errors").nth(1).and_then(|rest| rest.split("\n## ").next());
    let own = section.and_then(|section| section.split("Of this protocol's own are").nth(1));
    let stated: std::collections::BTreeSet<&str> =
        own.expect("a list").split('`').skip(1).step_by(2).collect();
    // Codes of the native page with the same meaning.
    let shared = ["invalid_json", "unsupported", "text_too_long"];
    sent.retain(|code| !shared.contains(code));
    assert!(sent.len() > 12, "{sent:?}");
    assert_eq!(sent, stated);
}
