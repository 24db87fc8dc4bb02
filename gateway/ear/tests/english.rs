//! What English text sounds like: one line of table for each kind of thing that people write.

use std::sync::Arc;

use ear::{Ear, Lexicon, Span, language};

fn said(text: &str) -> String {
    said_in("english", text)
}

fn said_in(name: &str, text: &str) -> String {
    let mut ear = Ear::new(language(name), Arc::default());
    let mut spans = Vec::new();
    ear.push(text, &mut spans);
    ear.flush(&mut spans);
    spans
        .into_iter()
        .map(|span| match span {
            Span::AsIs(text) => text,
            Span::Said { said, .. } => said,
            Span::Pause { ms, .. } => format!("[{ms}]"),
        })
        .collect()
}

fn check(table: &[(&str, &str)]) {
    check_in("english", table);
}

fn check_in(name: &str, table: &[(&str, &str)]) {
    let wrong: Vec<String> = table
        .iter()
        .map(|(text, expected)| (text, expected, said_in(name, text)))
        .filter(|(_, expected, said)| said != *expected)
        .map(|(text, expected, said)| format!("{text:?}\n  is       {said:?}\n  expected {expected:?}"))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn plain_words_are_left_alone() {
    for text in [
        "The morning train was late again, so we walked along the river.",
        "\"Stop!\" he said; (really) don't - wait...",
        "It's a well-known fact. May I? March on! He sat. A man, a plan.",
        "STOP DOING THAT NOW",
        "  spaces  and\ttabs\nlines ",
        "Ich heiße Jürgen. \u{4F60}\u{597D}\u{3002}",
        "a<b and <b>bold</b>",
        "",
    ] {
        assert_eq!(said(text), text);
    }
}

#[test]
fn numbers_are_said_in_words() {
    check(&[
        ("I have 5 apples.", "I have five apples."),
        ("42", "forty-two"),
        ("0, 7, 13, 100, 110.", "zero, seven, thirteen, one hundred, one hundred ten."),
        ("1,234,567 people", "one million two hundred thirty-four thousand five hundred sixty-seven people"),
        ("1,2", "one, two"),
        ("3.14 and .5", "three point one four and zero point five"),
        ("-5 or \u{2212}7.5", "minus five or minus seven point five"),
        ("It costs 3.5. Then 4.", "It costs three point five. Then four."),
        ("10% of 2.5 %", "ten percent of two point five percent"),
        ("1st, 2nd, 3rd, 12th, 20th, 101st", "first, second, third, twelfth, twentieth, one hundred first"),
        ("1/2 or 3/4 or 2/3", "one half or three quarters or two thirds"),
        ("1 1/2 cups, 24/7", "one and a half cups, twenty-four seven"),
        ("10-20 and 10\u{2013}20%", "ten to twenty and ten to twenty percent"),
        ("a 24-hour day", "a twenty-four hour day"),
        ("007", "zero zero seven"),
        (
            "3x faster at 1920x1080",
            "three times faster at one thousand nine hundred twenty by one thousand eighty",
        ),
        ("10k users, 5M more", "ten thousand users, five million more"),
        ("version 1.2.3", "version one point two point three"),
        ("#1 in 16:9", "number one in sixteen to nine"),
        ("18+", "eighteen plus"),
        (
            "123456789012345678",
            "one two three four five six seven eight nine zero one two three four five six seven eight",
        ),
    ]);
}

#[test]
fn years_and_dates_are_said_as_people_say_them() {
    check(&[
        ("In 1984 and 2024.", "In nineteen eighty-four and twenty twenty-four."),
        ("1900, 2000, 2005, 1907", "nineteen hundred, two thousand, two thousand five, nineteen oh seven"),
        ("the 1990s and 80s", "the nineteen nineties and eighties"),
        ("1999-2004", "nineteen ninety-nine to two thousand four"),
        ("2024-05-03", "May third, twenty twenty-four"),
        ("on 5/3/2024.", "on May third, twenty twenty-four."),
        ("on 25/12/2023", "on December twenty-fifth, twenty twenty-three"),
        ("3 May 2024", "May third, twenty twenty-four"),
        ("the 3rd of May, then", "the May third, then"),
        ("May 3, 2024, was", "May third, twenty twenty-four, was"),
        ("May 2024", "May twenty twenty-four"),
        ("on May 3.", "on May third."),
        ("Jan. 5 was cold", "January fifth was cold"),
        ("Sept. 2001", "September two thousand one"),
        ("last Dec. It snowed", "last December. It snowed"),
        ("2024-13-45", "twenty twenty-four thirteen forty-five"),
    ]);
}

#[test]
fn times_are_said_as_a_clock_is_read() {
    check(&[
        ("at 3:30", "at three thirty"),
        ("3:05 pm", "three oh five p m"),
        ("9am to 5pm", "nine a m to five p m"),
        ("5 p.m. sharp", "five p m sharp"),
        ("at 5 p.m. Then home.", "at five p m. Then home."),
        ("at 12:00.", "at twelve o'clock."),
        ("11:59:30", "eleven fifty-nine and thirty seconds"),
    ]);
}

#[test]
fn money_and_measures_carry_their_names() {
    check(&[
        ("$3.50", "three dollars and fifty cents"),
        ("$1 or $2.", "one dollar or two dollars."),
        ("$0.99", "ninety-nine cents"),
        ("$1.5 million", "one point five million dollars"),
        ("$5k", "five thousand dollars"),
        ("$10-20", "ten to twenty dollars"),
        ("\u{A3}2.99, \u{20AC}1,000", "two pounds and ninety-nine pence, one thousand euros"),
        ("-$5", "minus five dollars"),
        ("100 USD", "one hundred dollars"),
        ("EUR 20", "twenty euros"),
        ("5\u{20AC}", "five euros"),
        ("\u{A5}500", "five hundred yen"),
        ("5 km, 1 kg", "five kilometers, one kilogram"),
        ("20\u{B0}C", "twenty degrees Celsius"),
        ("100km/h", "one hundred kilometers per hour"),
        ("16 GB of RAM at 3.2GHz", "sixteen gigabytes of RAM at three point two gigahertz"),
        ("6 ft. tall", "six feet tall"),
        ("5 in the morning", "five in the morning"),
        ("300 ms", "three hundred milliseconds"),
    ]);
}

#[test]
fn in_britain_days_stand_first_numbers_have_their_and_and_pence_are_money() {
    check_in(
        "en-GB",
        &[
            (
                "110, 999 and 1,005.",
                "one hundred and ten, nine hundred and ninety-nine and one thousand and five.",
            ),
            (
                "1,234,567 people",
                "one million two hundred and thirty-four thousand five hundred and sixty-seven people",
            ),
            ("100, 2,000 and 1,100,000", "one hundred, two thousand and one million one hundred thousand"),
            (
                "the 101st, 350.5 km",
                "the one hundred and first, three hundred and fifty point five kilometres",
            ),
            ("2005 and 1984", "two thousand and five and nineteen eighty-four"),
            ("on 5/3/2024.", "on the fifth of March, twenty twenty-four."),
            ("on 3/25/2024", "on the twenty-fifth of March, twenty twenty-four"),
            ("2024-05-03", "the third of May, twenty twenty-four"),
            ("3 May 2024", "the third of May, twenty twenty-four"),
            ("on the 3rd of May, then", "on the third of May, then"),
            ("The 3rd of May", "The third of May"),
            ("May 3, 2024, was", "May the third, twenty twenty-four, was"),
            ("Sept. 2001", "September two thousand and one"),
            ("\u{A3}2.99, 50p and 1p", "two pounds and ninety-nine pence, fifty pence and one penny"),
            ("\u{A3}150 or $150", "one hundred and fifty pounds or one hundred and fifty dollars"),
            ("at 3.30pm, not 3.30", "at three thirty p m, not three point three zero"),
            ("at 9.05 a.m. sharp", "at nine oh five a m sharp"),
            ("250ml", "two hundred and fifty millilitres"),
            ("HTML and 5 km", "H T M L and five kilometres"),
        ],
    );
}

#[test]
fn a_region_says_whose_english_it_is() {
    for (name, tag) in [
        ("english", Some("en-US")),
        ("en", Some("en-US")),
        ("EN_us", Some("en-US")),
        ("en-CA", Some("en-US")),
        ("en-GB", Some("en-GB")),
        ("en_gb", Some("en-GB")),
        ("en-Latn-IE", Some("en-GB")),
        ("eng-AU", Some("en-GB")),
        ("gb", None),
        ("de-GB", None),
        ("", None),
    ] {
        assert_eq!(language(name).map(|language| language.tag()), tag, "{name}");
    }
}

#[test]
fn telephone_numbers_are_said_digit_by_digit() {
    check(&[
        ("555-1234", "five five five, one two three four"),
        ("call 555-123-4567.", "call five five five, one two three, four five six seven."),
        ("(555) 123-4567", "five five five, one two three, four five six seven"),
        ("+1 555 123 4567 now", "one, five five five, one two three, four five six seven now"),
        ("555 people", "five hundred fifty-five people"),
        ("5551234567", "five five five one two three four five six seven"),
    ]);
}

#[test]
fn addresses_are_spelled_where_they_have_signs() {
    check(&[
        (
            "https://www.example.com/a-b?q=1.",
            "w w w dot example dot com slash a dash b question mark q equals one.",
        ),
        ("see example.org/", "see example dot org"),
        ("me@mail.example.com, please", "me at mail dot example dot com, please"),
        ("the end.It was", "the end.It was"),
        ("192.168.0.1", "one hundred ninety-two point one hundred sixty-eight point zero point one"),
    ]);
}

#[test]
fn abbreviations_end_a_sentence_only_where_one_ends() {
    check(&[
        (
            "Dr. Smith met Mr. Jones on Elm St. yesterday.",
            "Doctor Smith met Mister Jones on Elm Street yesterday.",
        ),
        ("In St. Louis, Dr Who lives on Hill Dr.", "In Saint Louis, Doctor Who lives on Hill Drive."),
        ("apples, pears, etc. and nuts", "apples, pears, et cetera and nuts"),
        ("apples, etc. Then", "apples, et cetera. Then"),
        ("apples, etc.", "apples, et cetera."),
        ("(e.g. this, i.e. that)", "(for example this, that is that)"),
        ("No. 5 is not No. Maybe", "number five is not No. Maybe"),
        ("fig. 3, pp. 4-5", "figure three, pages four to five"),
        ("the U.S. and the U.K. agree", "the U S and the U K agree"),
        ("Acme Inc. said", "Acme Incorporated said"),
        ("a Ph.D. student", "a P h D student"),
        ("Smith vs. Jones", "Smith versus Jones"),
        ("J. K. Rowling", "J. K. Rowling"),
    ]);
}

#[test]
fn acronyms_are_spelled_unless_they_are_words() {
    check(&[
        ("HTML and the FBI", "H T M L and the F B I"),
        ("NASA and NATO", "NASA and NATO"),
        ("two GPUs", "two G P U's"),
        ("AT&T, R&D", "A T and T, R and D"),
        ("COVID-19, GPT-4, mp3, H200", "COVID nineteen, G P T four, mp three, H two hundred"),
        ("WHO IS IT", "WHO IS IT"),
        ("the US and GIVE US TIME", "the U S and GIVE US TIME"),
        ("World War II", "World War two"),
        ("#fun @bob", "hashtag fun at bob"),
        ("and/or w/o you & me", "and or without you and me"),
    ]);
}

#[test]
fn emoji_are_said_by_name_and_repeated_ones_once() {
    check(&[
        ("Great \u{1F44D}", "Great thumbs up"),
        ("Great\u{1F44D}\u{1F3FD}\u{1F44D}\u{1F3FD}!", "Great thumbs up!"),
        ("\u{1F602}\u{1F602}\u{1F602}", "face with tears of joy"),
        ("\u{1F1E9}\u{1F1EA} won 5\u{1F3C6}", "flag Germany won five trophy"),
    ]);
}

#[test]
fn pauses_are_bounded_and_blank_lines_are_pauses() {
    check(&[
        ("one<break time=\"500ms\"/>two", "one[500]two"),
        ("one <break time='9s'/> <break time='9s'/> two", "one [3000] [0] two"),
        ("One.\n\nTwo.\n \n\n", "One.\n\n[250]Two.\n \n\n"),
        ("\n\nOne.", "\n\nOne."),
        ("<break time=\"1s\"/>go", "[1000]go"),
        ("5<break/>km", "five[500]km"),
    ]);
}

#[test]
fn a_lexicon_respells_single_words_of_any_case() {
    let entries = [("Nguyen", "Win"), ("sql", "sequel"), ("GIF", "jif")];
    let lexicon = Lexicon::new(entries.map(|(a, b)| (a.to_owned(), b.to_owned()))).expect("a lexicon");
    let heard = |name: &str, text: &str| {
        let mut ear = Ear::new(language(name), Arc::new(lexicon.clone()));
        let mut spans = Vec::new();
        ear.push(text, &mut spans);
        ear.flush(&mut spans);
        spans
            .iter()
            .map(|span| match span {
                Span::AsIs(text) => text.as_str(),
                Span::Said { said, .. } => said,
                Span::Pause { .. } => "",
            })
            .collect::<String>()
    };
    assert_eq!(heard("en", "Nguyen's SQL, (GIF)."), "Win's sequel, (jif).");
    assert_eq!(heard("klingon", "Nguyen has 3.5 etc."), "Win has 3.5 etc.");
    assert!(Lexicon::new([("two words".to_owned(), "x".to_owned())]).is_err());
    assert!(Lexicon::new([("dot.".to_owned(), "x".to_owned())]).is_err());
    assert!(Lexicon::new([(String::new(), "x".to_owned())]).is_err());
    assert!(Lexicon::new([("x".to_owned(), "...".to_owned())]).is_err());
}
