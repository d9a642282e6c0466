//! Values that follow from a JSON schema and a seed: each bound and one beyond, each field left out, other types, unknown words, long lists,
//! and texts that few authors expect. Pure.
//!
//! A sample is a valid value with one change at a known place. What a schema cannot say, such as rules of CEL, is not kept: `examples` in a
//! schema are values that keep it. Patterns are met by a few known texts, so a schema with another pattern needs `examples`, too.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use regex::Regex;
use serde_json::{Map, Value, json};

use crate::random::Random;

/// One of so many samples has no change.
const UNCHANGED: usize = 8;
/// More items than most lists take, and characters than most texts.
const MANY: usize = 1_000;
const TIMES: [&str; 12] = [
    "2026-01-02T03:04:05Z",
    "2099-01-02T03:04:05.123456789+01:00",
    "1970-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "0000-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59Z",
    "9999-12-31T23:59:59-23:59",
    "2016-12-31T23:59:60Z",
    "2026-01-02T03:04:05+24:59",
    "2026-01-02t03:04:05z",
    "2026-02-30T00:00:00Z",
    "soon",
];
/// Texts that some pattern or rule takes.
const KNOWN: [&str; 10] = [
    "a",
    "b",
    "example.com/name",
    "kube-system/azure",
    "NodeSignalled",
    "True",
    "50%",
    "2",
    "2m",
    "/etc/file",
];
const ODD: [&str; 60] = [
    " ",
    "\t",
    "a\nb",
    "\u{0}",
    "\u{1b}[31m",
    "\u{7f}",
    "\u{85}",
    "\u{2028}",
    "\u{202e}evil",
    "\u{2066}a\u{2069}",
    "\u{200b}",
    "\u{feff}a",
    "caf\u{e9}",
    "cafe\u{301}",
    "\u{301}",
    "\u{1f469}\u{200d}\u{1f692}",
    "\u{10ffff}",
    "\u{fffd}",
    "\u{5d0}\u{5d1}",
    "\u{ff21}",
    "\u{130}",
    "-",
    "-a",
    "a-",
    ".",
    "..",
    "a..b",
    "A",
    "a_b",
    "/",
    "a/",
    "a/b/c",
    "A.io/b",
    "*",
    "a*",
    "a=b:NoSchedule",
    "true",
    "null",
    "~",
    "none",
    "Disabled",
    "0",
    "007",
    "-1",
    "1.50",
    "1e3",
    "5001",
    "0%",
    "101%",
    "1m30s",
    "-5s",
    "0s",
    "99999999h",
    "P1D",
    "127.0.0.1:1",
    "10.0.0.0/33",
    "http://user@127.0.0.1:1",
    "{{ nothing",
    "\"'\\",
    "$(id) %s <b>",
];

/// A value, and how it differs from a valid one.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The whole value.
    pub value: Value,
    /// The dotted place of the change, `[]` for any item of a list; empty for the whole value.
    pub at: String,
    /// The change; empty if there is none.
    pub change: String,
}

/// A way down into a schema.
#[derive(Clone, Debug)]
enum Step {
    Key(String),
    /// A value of a map with any keys.
    Entry,
    Item,
    /// Of `anyOf`.
    Branch(usize),
}

impl Sample {
    /// Whether a dotted place is that of the change, or one of both is inside the other.
    pub fn is_about(&self, place: &str) -> bool {
        let keys = |place: &str| -> Vec<String> {
            let keys = place
                .split('.')
                .map(|key| key.split('[').next().unwrap_or_default().to_owned());
            keys.filter(|key| !key.is_empty()).collect()
        };
        let (at, place) = (keys(&self.at), keys(place));
        at.iter().zip(&place).all(|(one, other)| one == other)
    }
}

#[derive(Clone, Debug)]
enum Change {
    Missing,
    Value(Value),
    /// One more key.
    Key(String),
    Items(usize),
    /// An item twice.
    Twice,
}

impl Change {
    fn describe(&self) -> String {
        match self {
            Self::Missing => "left out".to_owned(),
            Self::Value(value) => value.to_string().chars().take(80).collect(),
            Self::Key(key) => format!("with the key {key:?}"),
            Self::Items(count) => format!("{count} items"),
            Self::Twice => "an item twice".to_owned(),
        }
    }
}

type Place = (Vec<Step>, Change);

/// So many samples of a schema. Changes of its form and of its texts take turns, in an order that follows from the seed.
pub fn samples(schema: &Value, seed: u64, count: usize) -> Vec<Sample> {
    let mut random = Random::new(seed);
    let (mut forms, mut texts) = (Vec::new(), Vec::new());
    collect(schema, &mut Vec::new(), &mut forms, &mut texts);
    for places in [&mut forms, &mut texts] {
        for end in (1..places.len()).rev() {
            let chosen = random.below(end as u64 + 1);
            places.swap(end, usize::try_from(chosen).unwrap());
        }
    }
    let (mut forms, mut texts) = (forms.iter().cycle(), texts.iter().cycle());
    let mut sample = |number: usize| {
        let turns = if number.is_multiple_of(2) {
            [&mut forms, &mut texts]
        } else {
            [&mut texts, &mut forms]
        };
        let mut places = turns.into_iter().filter(|_| !number.is_multiple_of(UNCHANGED));
        let Some((path, change)) = places.find_map(Iterator::next) else {
            return Sample {
                value: valid(schema, &mut random),
                at: String::new(),
                change: String::new(),
            };
        };
        Sample {
            value: build(schema, path, change, &mut random).unwrap_or(Value::Null),
            at: dotted(path),
            change: change.describe(),
        }
    };
    (0..count).map(&mut sample).collect()
}

fn dotted(path: &[Step]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            Step::Key(key) if text.is_empty() => text.push_str(key),
            Step::Key(key) => text.extend([".", key]),
            Step::Entry | Step::Item => text.push_str("[]"),
            Step::Branch(_) => {}
        }
    }
    text
}

/// All changes below a place: those of the form, and those of texts.
fn collect(schema: &Value, path: &mut Vec<Step>, forms: &mut Vec<Place>, texts: &mut Vec<Place>) {
    let mut below = |step: Step, inner: &Value, forms: &mut Vec<Place>| {
        path.push(step);
        if matches!(path.last(), Some(Step::Key(_))) {
            forms.push((path.clone(), Change::Missing));
        }
        collect(inner, path, forms, texts);
        path.pop();
    };
    for (number, branch) in schema["anyOf"].as_array().into_iter().flatten().enumerate() {
        below(Step::Branch(number), branch, forms);
    }
    for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
        below(Step::Key(key.clone()), inner, forms);
    }
    if schema["additionalProperties"].is_object() {
        below(Step::Entry, &schema["additionalProperties"], forms);
    }
    if schema["items"].is_object() {
        below(Step::Item, &schema["items"], forms);
    }
    forms.extend(form_changes(schema).into_iter().map(|change| (path.clone(), change)));
    texts.extend(text_changes(schema).into_iter().map(|change| (path.clone(), change)));
}

fn type_of(schema: &Value) -> &str {
    match schema["type"].as_str() {
        Some(kind) => kind,
        None if schema["enum"].is_array() || schema["const"].is_string() => "string",
        None => "",
    }
}

fn form_changes(schema: &Value) -> Vec<Change> {
    let kind = type_of(schema);
    let values = |values: Vec<Value>| values.into_iter().map(Change::Value);
    let others = [
        ("null", Value::Null),
        ("boolean", json!(true)),
        ("integer", json!(7)),
        ("string", json!("text")),
        ("array", json!([])),
        ("object", json!({})),
    ];
    let others = others
        .into_iter()
        .filter(|(other, _)| !kind.is_empty() && *other != kind);
    let mut changes: Vec<_> = others.map(|(_, value)| Change::Value(value)).collect();
    match kind {
        "integer" => {
            let bounds = ["minimum", "maximum"]
                .into_iter()
                .filter_map(|bound| schema[bound].as_f64());
            #[allow(clippy::cast_possible_truncation, reason = "bounds are whole numbers")]
            let near = bounds.flat_map(|bound| [bound as i64 - 1, bound as i64, bound as i64 + 1]);
            changes.extend(values(near.map(Value::from).collect()));
            let limits = [
                0,
                -1,
                i64::from(i32::MAX),
                i64::from(i32::MAX) + 1,
                i64::from(i32::MIN),
                i64::MAX,
                i64::MIN,
            ];
            changes.extend(values(limits.map(Value::from).to_vec()));
            changes.extend(values(vec![json!(1.5), json!(1e300), json!(u64::MAX)]));
        }
        "array" => {
            let bound = |name: &str| schema[name].as_u64().and_then(|bound| usize::try_from(bound).ok());
            let (least, most) = (bound("minItems").unwrap_or(0), bound("maxItems").unwrap_or(MANY));
            let counts = BTreeSet::from([0, least.saturating_sub(1), least, most, most + 1, MANY]);
            changes.extend(counts.into_iter().map(Change::Items));
            changes.push(Change::Twice);
        }
        "object" => {
            // Not the empty name, which the API server stores and then refuses in each patch of the object.
            changes.push(Change::Key("unknown".to_owned()));
            // As if dots were a way to write sections.
            let section = |(name, inner): (&String, &Value)| {
                let first = inner["properties"].as_object()?.keys().next()?;
                Some(Change::Key(format!("{name}.{first}")))
            };
            changes.extend(
                schema["properties"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .filter_map(section),
            );
        }
        _ => {}
    }
    let words = schema["enum"].as_array().cloned().unwrap_or_default();
    if let Some(Value::String(word)) = words.first().or(schema.get("const")) {
        changes.extend(values(vec![
            json!(word.to_lowercase()),
            json!(format!("{word} ")),
            json!("Unknown"),
            json!(""),
        ]));
    }
    changes.extend(values(words));
    changes
}

fn text_changes(schema: &Value) -> Vec<Change> {
    if type_of(schema) != "string" || schema["enum"].is_array() || schema["const"].is_string() {
        return Vec::new();
    }
    if schema["format"] == "date-time" {
        return TIMES.map(|time| Change::Value(json!(time))).into();
    }
    let bound = |name: &str| schema[name].as_u64().and_then(|bound| usize::try_from(bound).ok());
    let (least, most) = (bound("minLength").unwrap_or(0), bound("maxLength").unwrap_or(MANY));
    let lengths = BTreeSet::from([0, least.saturating_sub(1), least, 63, 64, 253, 254, most, most + 1]);
    // Bytes are more than characters.
    let long = lengths
        .into_iter()
        .flat_map(|length| ["a", "\u{e9}"].map(|text| text.repeat(length)));
    let texts = long.chain(ODD.into_iter().chain(KNOWN).map(str::to_owned));
    texts.map(|text| Change::Value(Value::from(text))).collect()
}

/// A valid value with a change at this place; `None` where it is left out.
fn build(schema: &Value, path: &[Step], change: &Change, random: &mut Random) -> Option<Value> {
    let Some((step, rest)) = path.split_first() else {
        return apply(schema, change, random);
    };
    match step {
        Step::Branch(number) => build(&schema["anyOf"][number], rest, change, random),
        Step::Item => {
            let item = build(&schema["items"], rest, change, random);
            let mut items = valid(schema, random).as_array().cloned().unwrap_or_default();
            let place = random.below(items.len() as u64 + 1);
            items.truncate(usize::try_from(place).unwrap());
            items.extend(item);
            Some(items.into())
        }
        Step::Entry => {
            let value = build(&schema["additionalProperties"], rest, change, random)?;
            Some(json!({ "app": value }))
        }
        Step::Key(key) => {
            let mut object = valid(schema, random).as_object().cloned().unwrap_or_default();
            match build(&schema["properties"][key], rest, change, random) {
                Some(value) => drop(object.insert(key.clone(), value)),
                None => drop(object.remove(key)),
            }
            Some(object.into())
        }
    }
}

fn apply(schema: &Value, change: &Change, random: &mut Random) -> Option<Value> {
    match change {
        Change::Missing => None,
        Change::Value(value) => Some(value.clone()),
        Change::Key(key) => {
            let mut object = valid(schema, random).as_object().cloned().unwrap_or_default();
            object.insert(key.clone(), json!(true));
            Some(object.into())
        }
        Change::Items(count) => Some((0..*count).map(|number| numbered(schema, number, random)).collect()),
        Change::Twice => {
            let item = numbered(schema, 0, random);
            Some(json!([item, item]))
        }
    }
}

/// An item that no other number has, where the keys of a list say what makes items different.
fn numbered(list: &Value, number: usize, random: &mut Random) -> Value {
    let mut item = valid(&list["items"], random);
    for key in list["x-kubernetes-list-map-keys"].as_array().into_iter().flatten() {
        item[key.as_str().unwrap_or_default()] = json!(format!("item-{number}.example"));
    }
    item
}

/// A value that the schema takes.
fn valid(schema: &Value, random: &mut Random) -> Value {
    let given = |name: &str| schema[name].as_array().filter(|values| !values.is_empty());
    if let Some(values) = given("examples").or(given("enum")) {
        return random.pick(values).clone();
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    if let Some(default @ Value::String(_)) = schema.get("default") {
        return default.clone();
    }
    if let Some(branches) = given("anyOf") {
        let branch = random.pick(branches);
        return valid(branch, random);
    }
    match type_of(schema) {
        "object" => valid_object(schema, random),
        "array" => valid_array(schema, random),
        "string" if schema["format"] == "date-time" => json!(random.pick(&TIMES[..3])),
        "string" => valid_text(schema, random),
        "integer" | "number" => {
            let bound = |name: &str, other: f64| schema[name].as_f64().unwrap_or(other);
            let (least, most) = (bound("minimum", -5.0), bound("maximum", 1000.0));
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "bounds are whole numbers"
            )]
            let above = random.below((most - least) as u64 + 1);
            #[allow(clippy::cast_possible_truncation, reason = "bounds are whole numbers")]
            let least = least as i64;
            json!(least + i64::try_from(above).unwrap())
        }
        "boolean" => json!(random.below(2) == 0),
        "null" => Value::Null,
        _ => json!("a"),
    }
}

fn valid_object(schema: &Value, random: &mut Random) -> Value {
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let mut object = Map::new();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    for (key, inner) in &properties {
        if required.iter().any(|one| one == key) || random.below(2) == 0 {
            object.insert(key.clone(), valid(inner, random));
        }
    }
    if object.is_empty() && schema["minProperties"].is_u64() {
        object.extend(
            properties
                .iter()
                .next()
                .map(|(key, inner)| (key.clone(), valid(inner, random))),
        );
    }
    if schema["additionalProperties"].is_object() {
        object.insert("app".to_owned(), valid(&schema["additionalProperties"], random));
    }
    object.into()
}

fn valid_array(schema: &Value, random: &mut Random) -> Value {
    let least = schema["minItems"].as_u64().unwrap_or(0);
    let count = (least + random.below(3)).min(schema["maxItems"].as_u64().unwrap_or(u64::MAX));
    let mut items = Vec::<Value>::new();
    for number in 0..count {
        let item = numbered(schema, usize::try_from(number).unwrap(), random);
        if !items.contains(&item) {
            items.push(item);
        }
    }
    items.into()
}

/// The known texts that match a pattern, which takes long to compile.
fn known_texts(pattern: &str) -> Vec<&'static str> {
    thread_local! {
        static MATCHING: RefCell<HashMap<String, Vec<&'static str>>> = RefCell::default();
    }
    MATCHING.with_borrow_mut(|matching| {
        let texts = matching.entry(pattern.to_owned()).or_insert_with(|| {
            let pattern = Regex::new(pattern).unwrap();
            KNOWN.into_iter().filter(|text| pattern.is_match(text)).collect()
        });
        texts.clone()
    })
}

fn valid_text(schema: &Value, random: &mut Random) -> Value {
    let length = |name: &str, other: u64| schema[name].as_u64().unwrap_or(other);
    let lengths = length("minLength", 0)..=length("maxLength", u64::MAX);
    let mut texts = schema["pattern"].as_str().map_or(KNOWN.to_vec(), known_texts);
    texts.retain(|text| lengths.contains(&(text.chars().count() as u64)));
    assert!(
        !texts.is_empty(),
        "no known text is valid; give the schema examples: {schema}"
    );
    json!(random.pick(&texts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "required": ["stage", "list"], "additionalProperties": false, "properties": {
            "stage": {"enum": ["Idle", "Drain"]},
            "seconds": {"type": "integer", "minimum": 10, "maximum": 20},
            "list": {"type": "array", "minItems": 1, "maxItems": 4, "items": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 9}},
            "section": {"type": "object", "properties": {"flag": {"type": "boolean"}}},
            "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        }})
    }

    #[test]
    fn samples_follow_from_schema_and_seed() {
        let first = samples(&schema(), 1, 300);
        assert_eq!(first, samples(&schema(), 1, 300));
        assert_eq!(
            first[..100],
            samples(&schema(), 1, 100),
            "a longer run begins as a shorter one"
        );
        assert_ne!(first, samples(&schema(), 2, 300));
    }

    #[test]
    fn each_change_of_the_form_occurs() {
        let all = samples(&schema(), 3, 1_000);
        let has = |at: &str, change: &str| {
            let found = all.iter().any(|sample| sample.at == at && sample.change == change);
            assert!(found, "{at}: {change}");
        };
        for key in ["stage", "seconds", "list", "section", "section.flag", "either"] {
            has(key, "left out");
        }
        for change in ["9", "10", "20", "21", "null", "\"text\"", "1.5", "2147483648"] {
            has("seconds", change);
        }
        for change in ["\"Idle\"", "\"Drain\"", "\"idle\"", "\"Unknown\"", "7"] {
            has("stage", change);
        }
        for change in [
            "0 items",
            "1 items",
            "4 items",
            "5 items",
            "1000 items",
            "an item twice",
            "{}",
        ] {
            has("list", change);
        }
        for change in ["\"\u{202e}evil\"", "\"aaaaaaaaa\"", "\"aaaaaaaaaa\"", "\"\""] {
            has("list[]", change);
        }
        has("", "with the key \"unknown\"");
        has("", "with the key \"section.flag\"");
        has("either", "[]");
    }

    #[test]
    fn a_change_is_where_it_says_and_all_else_is_valid() {
        for sample in samples(&schema(), 4, 500) {
            let value = &sample.value;
            if !sample.at.starts_with("stage") && !sample.at.is_empty() {
                assert!(
                    ["Idle", "Drain"].contains(&value["stage"].as_str().unwrap()),
                    "{sample:?}"
                );
            }
            if sample.at != "seconds" && !value["seconds"].is_null() {
                assert!((10..=20).contains(&value["seconds"].as_i64().unwrap()), "{sample:?}");
            }
            if sample.change.is_empty() {
                assert!((1..=4).contains(&value["list"].as_array().unwrap().len()), "{sample:?}");
            }
            assert!(sample.is_about(&sample.at) && sample.is_about(""), "{sample:?}");
            assert_eq!(
                sample.is_about("section.flag[3]"),
                sample.at.is_empty() || sample.at.starts_with("section")
            );
            if sample.change == "left out" && !sample.at.contains('.') {
                assert!(value.get(&sample.at).is_none(), "{sample:?}");
            }
        }
    }

    #[test]
    fn examples_keep_what_a_schema_cannot_say() {
        let entry = json!({"key": "metadata.name", "values": ["a"]});
        let schema = json!({"type": "array", "minItems": 1, "items": {"type": "object", "examples": [entry],
            "properties": {"key": {"type": "string"}, "values": {"type": "array", "items": {"type": "string"}}}}});
        for sample in samples(&schema, 5, 300) {
            let items = sample.value.as_array().into_iter().flatten();
            let changed = items.filter(|item| **item != entry).count();
            assert!(
                changed <= usize::from(!sample.change.is_empty()) || sample.change.ends_with("items"),
                "{sample:?}"
            );
        }
    }
}
