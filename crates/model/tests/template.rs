//! Compares chat templates with `transformers`, and tests malicious ones.

mod common;

use std::path::Path;

use serde_json::{Value, json};
use triad_model::ErrorKind;
use triad_model::checkpoint::Checkpoint;
use triad_model::template::{ChatTemplate, Message, RenderOptions};
use triad_model::tokenizer::Tokenizer;

fn golden() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates")
}

/// Returns the template of a golden case: a file next to it, or a real model's.
fn template(case: &Value) -> Option<ChatTemplate> {
    let name = case["template"].as_str().unwrap();
    if name.ends_with(".jinja") {
        let source = std::fs::read_to_string(golden().join(name)).unwrap();
        let source = source.strip_suffix('\n').unwrap();
        return Some(
            ChatTemplate::new(
                source,
                case["bos_token"].as_str(),
                case["eos_token"].as_str(),
            )
            .unwrap(),
        );
    }
    let checkpoint = Checkpoint::open(common::real_model(name)?).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(&checkpoint).unwrap();
    Some(
        ChatTemplate::from_checkpoint(&checkpoint, &tokenizer)
            .unwrap()
            .expect("the model has a template"),
    )
}

#[test]
fn templates_render_as_in_transformers() {
    let cases = std::fs::read(golden().join("expected.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&cases).unwrap();
    let mut differences = Vec::new();
    for of_template in cases.chunk_by(|a, b| a["template"] == b["template"]) {
        let Some(template) = template(&of_template[0]) else {
            continue;
        };
        for case in of_template {
            let messages: Vec<Message> = case["messages"]
                .as_array()
                .unwrap()
                .iter()
                .map(message)
                .collect();
            let rendered =
                template.render(&messages, case["add_generation_prompt"].as_bool().unwrap());
            let agrees = match (&rendered, case["text"].as_str(), case["error"].as_str()) {
                (Ok(rendered), Some(text), _) => rendered == text,
                // The template's own message; Jinja's differ.
                (Err(error), _, Some(message)) => {
                    error.to_string().contains(message) || message.contains("has no element")
                }
                _ => false,
            };
            if !agrees {
                differences.push(format!(
                    "{} {}:\n{rendered:?}\nexpected {}",
                    case["template"], case["case"], case
                ));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

/// Returns the differences between the renderings of a table and those of `transformers`, and the number of both.
fn differences(table: &[Value]) -> (Vec<String>, usize) {
    let mut differences = Vec::new();
    for of_template in table.chunk_by(|a, b| a["template"] == b["template"]) {
        let name = of_template[0]["template"].as_str().unwrap();
        let source = of_template[0]["source"].as_str().map(str::to_owned);
        let source = source.unwrap_or_else(|| {
            let text = std::fs::read_to_string(golden().join("styles").join(name)).unwrap();
            text.strip_suffix('\n').unwrap().to_owned()
        });
        let template = ChatTemplate::new(source, Some("<s>"), Some("</s>"));
        for row in of_template {
            let rendered = template.as_ref().map_err(ToString::to_string);
            let rendered = rendered.and_then(|template| rendered_row(template, row));
            let agrees = match (&rendered, row["text"].as_str()) {
                (Ok(rendered), Some(text)) => rendered == text,
                (rendered, None) => rendered.is_err(),
                (Err(_), Some(_)) => false,
            };
            if !agrees {
                let case = row["case"].as_str().unwrap();
                let expected = row.get("text").unwrap_or(&row["error"]);
                differences.push(format!(
                    "{name}, {case}:\n{rendered:?}\nexpected {expected}"
                ));
            }
        }
    }
    (differences, table.len())
}

fn rendered_row(template: &ChatTemplate, row: &Value) -> Result<String, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let variables = row["variables"].as_object().unwrap();
    let mut further = variables.clone();
    further.retain(|name, _| name == "enable_thinking");
    let is_true = |name: &str| variables.get(name) == Some(&Value::Bool(true));
    let (tools, documents) = (
        list(&row["variables"]["tools"]),
        list(&row["variables"]["documents"]),
    );
    let options = RenderOptions {
        tools: &tools,
        documents: &documents,
        add_generation_prompt: is_true("add_generation_prompt"),
        continue_final_message: is_true("continue_final_message"),
        variables: Some(&further),
    };
    template
        .render_conversation(&list(&row["messages"]), &options, None)
        .map_err(|error| error.to_string())
}

#[test]
fn conversations_with_tools_and_thoughts_render_as_in_transformers() {
    let mut tables = vec![golden().join("table.json")];
    // Of templates that may not be in the tree: `table.py` makes it.
    tables.extend(std::env::var_os("TRIAD_TEMPLATE_TABLE").map(std::path::PathBuf::from));
    for path in tables {
        let table: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let (differences, count) = differences(&table);
        assert!(
            differences.is_empty(),
            "{}: {} of {count} differ\n{}",
            path.display(),
            differences.len(),
            differences.join("\n\n")
        );
    }
}

/// Returns a tool with a schema of 4 KB, as `many_tools.py` makes it.
fn large_tool(index: usize) -> Value {
    let property = |place: usize| {
        let schema = match place % 5 {
            0 => {
                json!({"type": "string", "description": format!("Parameter {place} of the <tool>")})
            }
            1 => json!({"type": "integer", "minimum": place}),
            2 => json!({"type": "string", "enum": ["one", "two", "three"]}),
            3 => {
                json!({"type": "array", "items": {"type": "array", "items": {"type": "number"}}})
            }
            _ => json!({"type": "object", "properties": {"a": {"type": "boolean"}}}),
        };
        (format!("property_{place}"), schema)
    };
    let properties: serde_json::Map<_, _> = (0..48).map(property).collect();
    let required = ["property_0", "property_3"];
    let parameters = json!({"type": "object", "properties": properties, "required": required});
    let (name, description) = (format!("tool_{index}"), format!("Tool {index}"));
    json!({"type": "function", "function": {"name": name, "description": description, "parameters": parameters}})
}

#[test]
fn a_conversation_with_as_many_large_tools_as_a_request_may_have_renders_as_in_transformers() {
    let hashes = std::fs::read(golden().join("many_tools.json")).unwrap();
    let hashes: serde_json::Map<String, Value> = serde_json::from_slice(&hashes).unwrap();
    let tools: Vec<Value> = (0..128).map(large_tool).collect();
    let messages = [json!({"role": "user", "content": "What is the weather in Zürich?"})];
    for (name, expected) in hashes {
        let source = std::fs::read_to_string(golden().join("styles").join(&name)).unwrap();
        let source = source.strip_suffix('\n').unwrap();
        let template = ChatTemplate::new(source, Some("<s>"), Some("</s>")).unwrap();
        let rendered = template.render_with_tools(&messages, &tools, true, None);
        let rendered = rendered.unwrap_or_else(|error| panic!("{name}: {error}"));
        let hash = rendered
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
            });
        assert_eq!(format!("{hash:016x}"), expected, "{name}");
    }
    // The limit still ends a template that never does.
    let endless = "{% for i in range(9999) %}{% for i in range(9999) %}{% endfor %}{% endfor %}";
    let template = ChatTemplate::new(endless, None, None).unwrap();
    let error = template.render_with_tools(&messages, &tools, true, None);
    let error = error.unwrap_err().to_string();
    // On a slow machine the limit of time is reached first.
    assert!(
        error.contains("fuel") || error.contains("longer than"),
        "{error}"
    );
}

fn message(value: &Value) -> Message {
    Message::new(
        value["role"].as_str().unwrap(),
        value["content"].as_str().unwrap(),
    )
}

/// Returns the result of a hostile or broken template on a short conversation.
fn outcome(source: &str) -> Result<String, triad_model::Error> {
    ChatTemplate::new(source, None, None)?.render(&[Message::new("user", "hi")], true)
}

fn error(source: &str) -> String {
    let error = outcome(source).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Template);
    error.to_string()
}

#[test]
fn a_broken_template_is_an_error_that_names_the_line() {
    assert!(error("a\nb\n{% if %}").contains("line 3"));
    assert!(error("a\n{{ messages[0].content.missing() }}").contains("line 2"));
    assert!(error("{% for m in messages %}").contains("line 1"));
}

#[test]
fn what_a_template_refuses_is_an_error_in_its_words() {
    assert_eq!(
        error("\n\n{{ raise_exception('only cats') }}"),
        "chat template, line 3: only cats"
    );
}

#[test]
fn a_template_that_never_ends_is_stopped() {
    let count = "{% for i in range(9999) %}";
    assert!(error(&format!("{count}{count}{{% endfor %}}{{% endfor %}}")).contains("fuel"));
    assert!(error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").contains("recursion"));
    assert!(error("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}").contains("recursion"));
    assert!(error("{% include 'chat template' %}").contains("no other template"));
}

#[test]
fn a_template_that_writes_without_end_is_stopped() {
    assert!(error("{% set text = 'a' * 2500000 %}{{ text }}{{ text }}").contains("too long"));
    error("{{ 'a' * 900000000000 }}");
    error("{{ '{:900000000000}'.format(1) }}");
    error("{{ 'a' | indent(900000000000) }}");
    error("{{ [1] | batch(900000000000, 1) | list }}");
}

#[test]
fn a_template_that_builds_without_end_is_stopped_before_memory_is() {
    let too_much = |source: &str| {
        let error = error(source);
        let refusals = [
            "than any conversation needs",
            "repeated string is too large",
        ];
        assert!(
            refusals.iter().any(|refusal| error.contains(refusal)),
            "{source}: {error}"
        );
    };
    let doubled = |step: &str| {
        format!(
            "{{% set ns = namespace(x='aa') %}}{{% for i in range(60) %}}{step}{{% endfor %}}{{{{ ns.x | length }}}}"
        )
    };
    for step in [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x = [ns.x, ns.x] | join %}",
        "{% set ns.x = ''.join([ns.x, ns.x]) %}",
        "{% set ns.x = [[ns.x, ns.x]] | map('join') | first %}",
        "{% set ns.x = ns.x | replace('a', 'aa') %}",
        "{% set ns.x = ns.x.replace('a', 'aa') %}",
        "{% set ns.x = ns.x | replace('', 'a') %}",
        "{% set ns.x = [ns.x, ns.x] | string %}",
        "{% set ns.x = [ns.x, ns.x] | tojson %}",
        "{% set ns.x = [ns.x, ns.x] ~ '' %}",
        "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}",
        "{% set x %}{{ [ns.x, ns.x] }}{% endset %}{% set ns.x = x %}",
        "{% macro f() %}{{ ns.x }}{{ ns.x }}{% endmacro %}{% set ns.x = f() %}",
        "{% filter replace('a', 'aa') %}{{ ns.x }}{% endfilter %}{% set ns.x = ns.x + ns.x %}",
    ] {
        too_much(&doubled(step));
    }
    // Each list contains the previous one twice and takes little memory; its text does not.
    let nested = "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    for use_of_it in [
        "{{ ns.x }}",
        "{{ ns.x | tojson }}",
        "{{ ns.x ~ '' }}",
        "{{ ns.x | upper }}",
        "{{ ns.x | join }}",
    ] {
        too_much(&format!("{nested}{use_of_it}"));
    }
    // Nothing doubles, but everything is kept.
    let kept = |step: &str| {
        let text = "{% set ns = namespace(all=[]) %}{% set text = 'a ' * 1000000 %}{% for i in range(9999) %}";
        format!("{text}{{% set ns.all = ns.all + [{step}] %}}{{% endfor %}}")
    };
    for step in [
        "text ~ i",
        "text[1:]",
        "text | upper",
        "text.upper()",
        "text.split(' ')",
        "text | list",
    ] {
        too_much(&kept(step));
    }
    let lists = "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
    too_much(&format!("{lists}{{{{ ns.x | list | length }}}}"));
    too_much("{{ ([1] * 90000000) | list | length }}");
    let raw = "a".repeat(50_000);
    too_much(&format!(
        "{{% set x %}}{{% for i in range(9999) %}}{raw}{{% endfor %}}{{% endset %}}"
    ));
}

/// Returns a template with a list nested `depth` times: it takes little memory, and has 2 to the power of `depth`
/// elements.
fn doubled(depth: usize) -> String {
    format!(
        "{{% set ns = namespace(x=[1], y=[1]) %}}{{% for i in range({depth}) %}}{{% set ns.x = [ns.x, ns.x] %}}\
         {{% set ns.y = [ns.y, ns.y] %}}{{% endfor %}}"
    )
}

#[test]
fn a_step_of_a_template_is_short_whatever_it_compares() {
    for use_of_it in [
        "{{ ns.x == ns.y }}",
        "{{ ns.x != ns.y }}",
        "{{ ns.x < ns.y }}",
        "{{ ns.x <= ns.y < ns.x }}",
        "{{ ns.x in [ns.y] }}",
        "{{ ns.x is eq(ns.y) }}",
        "{{ [ns.x] | select('eq', ns.y) | list | length }}",
        "{{ [ns.x, ns.y] | unique | list | length }}",
        "{{ [ns.x, ns.y] | sort | length }}",
        "{{ [ns.x, ns.y] | max | length }}",
        "{{ [{'a': ns.x}, {'a': ns.y}] | groupby('a') | length }}",
        "{{ {ns.x: 1}[ns.y] }}",
        "{{ {'a': 1}.get(ns.x) }}",
        "{{ [ns.x].count(ns.y) }}",
        "{% for x in [ns.x, ns.y] %}{{ loop.changed(x) }}{% endfor %}",
        "{{ ns.x in 'text' }}",
    ] {
        let error = error(&format!("{}{use_of_it}", doubled(40)));
        assert!(
            error.contains("larger value than any conversation needs"),
            "{use_of_it}: {error}"
        );
    }
    // Each of them is light, but together they are not.
    for many in [
        "[ns.x] * 9999",
        "[[ns.x] * 99] * 999",
        "dict(a=[ns.x] * 9999)",
        "(ns.x, ns.x) * 999",
    ] {
        let error = error(&format!(
            "{}{{% set all = {many} %}}{{{{ all == 1 }}}}",
            doubled(14)
        ));
        assert!(
            error.contains("larger value than any conversation needs"),
            "{many}: {error}"
        );
    }
    assert!(error("{{ (['aa'] * 9999) | sum(start='') }}").contains("sum"));
    assert!(error("{{ debug() }}").contains("debug"));
}

#[test]
fn a_template_of_short_steps_without_end_is_stopped_by_its_clock() {
    let many = vec![Message::new("user", "hi"); 4096];
    let source = "{% set a, b = range(9999) | list, range(9999) | list %}{% for m in messages %}{% for i in range(900) %}\
                  {% set same = a == b %}{% endfor %}{% endfor %}";
    let error = ChatTemplate::new(source, None, None)
        .unwrap()
        .render(&many, true)
        .unwrap_err()
        .to_string();
    assert!(error.contains("it takes longer than 5 seconds"), "{error}");
}

#[test]
fn a_rendering_that_is_not_wanted_any_more_ends() {
    let template = ChatTemplate::new(
        "{% for m in messages %}{{ m.role }}{% endfor %}",
        None,
        None,
    )
    .unwrap();
    let messages = [json!({"role": "user", "content": "hi"})];
    let stop = |stop: bool| Some(std::sync::Arc::new(move || stop) as triad_model::template::Stop);
    assert_eq!(
        template
            .render_with_tools(&messages, &[], true, stop(false))
            .unwrap(),
        "user"
    );
    let error = template
        .render_with_tools(&messages, &[], true, stop(true))
        .unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
}

#[test]
fn no_value_of_a_template_is_deeper_than_the_stack() {
    let many = vec![Message::new("user", "hi"); 64];
    // Cases that do not become deeper run fewer times.
    for (begin, step, end) in [
        ("[]", "[ns.a]", ""),
        ("[]", "(ns.a,)", ""),
        ("[]", "{'a': ns.a}", ""),
        ("[]", "dict(a=ns.a)", ""),
        ("[]", "namespace(a=ns.a)", ""),
        ("[]", "[ns.a] | list", ""),
        ("[1]", "ns.a | map('default') | batch(1) | list", ""),
        ("[1]", "ns.a | slice(1) | list", ""),
        ("{'a': 1}", "{'a': ns.a}.values() | list", ""),
        ("[{'a': 1}]", "[{'a': ns.a}] | groupby('b') | list", ""),
        ("{'a': 1}", "dict(ns.a, a=ns.a)", ""),
        ("[]", "ns", "{{ ns }}"),
        ("[]", "[ns]", "{{ ns.a == [ns] }}"),
        ("[1, 2, 3]", "ns.a[:]", "{{ ns.a }}"),
        ("[1, 2, 3]", "ns.a * 1", "{{ ns.a }}"),
        ("[1, 2, 3]", "ns.a + []", "{{ ns.a }}"),
        ("[1, 2, 3]", "ns.a | reverse | list", "{{ ns.a }}"),
        ("[1, 2, 3]", "ns.a | map('int') | list", "{{ ns.a }}"),
    ] {
        let source = format!(
            "{{% set ns = namespace(a={begin}) %}}{{% for m in messages %}}{{% for i in range(900) %}}\
             {{% set ns.a = {step} %}}{{% endfor %}}{{% endfor %}}{end}"
        );
        let messages = if end.is_empty() {
            &many[..]
        } else {
            &many[..2]
        };
        match ChatTemplate::new(source, None, None)
            .unwrap()
            .render(messages, true)
        {
            Ok(text) => assert!(
                ["[1, 2, 3]", "[3, 2, 1]"].contains(&&*text),
                "{step}: {text}"
            ),
            Err(error) => {
                let error = error.to_string();
                let reasons = [
                    "200 deep",
                    "namespace within another value",
                    "conversation needs",
                ];
                assert!(
                    reasons.iter().any(|reason| error.contains(reason)),
                    "{step}: {error}"
                );
            }
        }
    }
    // A parameter is a separate variable, so a namespace may be an argument.
    let passed = "{% macro f(state) %}{{ state.x }}{% endmacro %}{% set ns = namespace(x=3) %}{{ f(state=ns) }}{{ f(ns) }}";
    assert_eq!(outcome(passed).unwrap(), "33");
}

#[test]
fn a_tag_of_more_words_than_any_is_an_error_that_names_the_line() {
    let long = format!("a\n{{{{ 1{} }}}}", " + 1".repeat(2000));
    assert!(error(&long).contains("line 2: a tag has more than 2048 words"));
    let elifs = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(600));
    assert!(error(&elifs).contains("600 tags elif"));
    assert!(error("{{ f(*[1]) }}").contains("(*list)"));
    // Text outside tags has no words, nor has a string.
    assert_eq!(outcome(&"a b c ".repeat(5000)).unwrap().len(), 30_000);
    assert_eq!(
        outcome(&format!("{{{{ '{}' }}}}", "a b ".repeat(5000)))
            .unwrap()
            .len(),
        20_000
    );
}

#[test]
fn a_constant_is_paid_for_where_it_is_reached_and_costs_nothing_elsewhere() {
    for constant in [
        "'x' * 99999999",
        "99999999 * 'x'",
        "(1,) * 100000000",
        "[1] * 100000000",
        "[1] * 99999",
        "0 in [1] * 99000000",
        "[1] * 99000000 == [1] * 99000000",
        "'a' in 'x' * 99999999",
        "([1] * 9999 + [2] * 9999) * 9999",
        "-('x' * 99999999)",
        "not ('x' * 99999999)",
        "1 < 2 < 'x' * 99999999",
        "{'a': 'x' * 99999999}",
        "'x' ~ 'x' * 99999999",
        "1 if 'x' * 99999999 else 2",
    ] {
        let reached = error(&format!("a\n{{{{ {constant} }}}}"));
        assert!(reached.contains("line 2"), "{constant}: {reached}");
        assert!(
            reached.contains("than any conversation needs"),
            "{constant}: {reached}"
        );
        let source = format!("{{{{ {constant} }}}}").repeat(100);
        let unreached = outcome(&format!("a{{% if 0 %}}{source}{{% endif %}}b"));
        assert_eq!(unreached.unwrap(), "ab", "{constant}");
    }
    let chain = format!("{{{{ 'a' * 30000{} }}}}", " ~ 1".repeat(900));
    assert!(error(&chain).contains("than any conversation needs"));
    let common = "{{ '=' * 8 ~ '-' }}{{ [1] * 3 + [2] }}{{ 2 ** 10 }}{{ -1 }}{{ 'a' in ['a', 'b'] }}{{ 1 < 2 }}";
    assert_eq!(
        outcome(common).unwrap(),
        "========-[1, 1, 1, 2]1024-1TrueTrue"
    );
}

#[test]
fn a_width_is_paid_for_before_it_is_written() {
    for source in [
        "{{ 'a'.center(99999999) }}",
        "{{ 'a'.ljust(99999999) }}",
        "{{ 'a'.rjust(99999999, 'é') }}",
        "{{ 'a'.zfill(99999999) }}",
        "{{ 'a\\tb'.expandtabs(99999999) }}",
        "{{ 'a' | center(99999999) }}",
        "{{ 'a\\nb' | indent(99999999) }}",
        "{{ ('\\n' * 100000) | indent('a' * 1000, blank=true) }}",
        "{{ '%99999999d' % 1 }}",
        "{{ '%-99999999s' % 'a' }}",
        "{{ '{:99999999}'.format('a') }}",
        "{{ '{:é>99999999}'.format(1) }}",
        "{{ '%99999999s' | format('a') }}",
        "{{ [1] | batch(99999999, 'x') | list }}",
        "{{ [1] | slice(99999999) | list }}",
        "{{ 'aaaa' | replace('a', 'x' * 9999999) }}",
        "{{ ['a'] | map('center', 99999999) | list }}",
    ] {
        let error = error(source);
        assert!(
            error.contains("than any conversation needs"),
            "{source}: {error}"
        );
    }
    // What is written is bounded before all fields are.
    for source in [
        "{{ ('%(a).99f' * 2000) % {'a': 1e300} }}",
        "{{ ('{0:.99f}' * 2000).format(1e300) }}",
        "{{ ','.join('a' * 20000) }}",
        "{{ ('a' * 20000) | map('upper') | list }}",
    ] {
        let error = error(&format!("{{% set most = 'a' * 8000000 %}}{source}"));
        assert!(
            error.contains("than any conversation needs"),
            "{source}: {error}"
        );
    }
    assert!(error("{{ -(-(2 ** 126) * 2) }}").contains("128 bits"));
    assert!(error("{{ (-(2 ** 126) * 2) | abs }}").contains("128 bits"));
    let range =
        "{{ range(-9223372036854775808, 9223372036854775807, 9223372036854775807) | list }}";
    let all = "[-9223372036854775808, -1, 9223372036854775806]";
    assert_eq!(outcome(range).unwrap(), all);
    assert!(error("{{ range(999999) }}").contains("more than 100000"));
    assert!(error("{{ 7 ** 9999999 }}").contains("128 bits"));
    assert!(error("{{ '%.999999f' % 1 }}").contains("too large"));
    let pairs = (0..200).map(|place| format!("{place}: 1"));
    let pairs = pairs.collect::<Vec<_>>().join(", ");
    assert!(error(&format!("{{{{ {{{pairs}}} }}}}")).contains("so many keys"));
    let many = "{% set all = range(60000) | list %}{{ all | unique | list | length }}";
    assert!(error(many).contains("than any conversation needs"));
}

#[test]
fn white_space_and_none_are_those_of_python() {
    // As `transformers` renders them.
    for (source, expected) in [
        (
            "{{ none is iterable }}{{ [] is iterable }}{{ 'a' is iterable }}{{ nothing is iterable }}{{ 5 is iterable }}",
            "FalseTrueTrueTrueFalse",
        ),
        (
            r"{{ '\x1ca\x1f'.strip() }}{{ '\x1ca' | trim }}{{ '\x1d'.isspace() }}{{ 'xyax' | trim('xy') }}{{ 5 | trim }}",
            "aaTruea5",
        ),
        (
            r"{{ ' a '.lstrip() ~ ' a '.rstrip() ~ ' a '.strip(none) ~ 'xa'.lstrip('x') }}|{{ none | trim }}",
            "a  aaa|None",
        ),
        (
            r"{{ 'a\x1cb c'.split() }}{{ ' a b '.split(none, 1) }}{{ 'a b'.split(none, -1) }}{{ 'a,b'.split(',', 0) }}",
            "['a', 'b', 'c']['a', 'b ']['a', 'b']['a,b']",
        ),
        (
            r"{{ 'a\x85b\rc\r\n'.splitlines() }}{{ 'a\nb'.splitlines(true) }}",
            r"['a', 'b', 'c']['a\n', 'b']",
        ),
    ] {
        assert_eq!(outcome(source).unwrap(), expected, "{source}");
    }
    assert!(error("{{ 'abc'.split('') }}").contains("found an empty one"));
}

#[test]
fn a_default_may_read_a_parameter_as_in_jinja() {
    // As `transformers` renders them.
    for (source, expected) in [
        (
            "{% macro f(x, y=x) %}{{ x }}{{ y }}{% endmacro %}{{ f(1, 2) }}{{ f(3) }}{{ f(x=4) }}",
            "123344",
        ),
        (
            "{% set z = 3 %}{% macro f(x, y=z) %}{{ x }}{{ y }}{% endmacro %}{{ f(1) }}",
            "13",
        ),
        (
            "{% macro f(x=1, y='b' ~ 'c', z=none) %}{{ x }}{{ y }}{{ z }}{% endmacro %}{{ f(z=3, x=2) }}",
            "2bc3",
        ),
        (
            "{% macro f(x=y, y=2) %}[{{ x }}{{ y }}]{% endmacro %}{{ f() }}{{ f(y=3) }}",
            "[2][33]",
        ),
        (
            "{% macro f(a, x, y=[1] if a else (x or 2)) %}{{ y }}{% endmacro %}{{ f(0, 1) }}",
            "1",
        ),
        (
            "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(a, b=a) m() %}{{ b }}{% endcall %}",
            "1",
        ),
    ] {
        assert_eq!(outcome(source).unwrap(), expected, "{source}");
    }
    let undefined = "{% macro f(x=1) %}{{ x }}{% endmacro %}{{ f(nothing) }}";
    assert!(error(undefined).contains("has a default"));
}

#[test]
fn a_method_that_is_not_called_is_true_and_has_no_attributes() {
    // As jinja2 renders them. Templates of gpt-oss ask so for the elements of an array whose schema names none.
    let source = "{% set a = {'type': 'array'} %}{% if a['items'] %}{{ a['items']['type'] == 'string' }}\
                  {{ a.items.type is defined }}{{ a['items'][0] is defined }}{{ a['items'].enum }}{% endif %}";
    assert_eq!(outcome(source).unwrap(), "FalseFalseFalse");
}

#[test]
fn a_filter_that_does_not_exist_is_an_error_at_once_unless_a_condition_guards_it() {
    assert!(
        ChatTemplate::new(
            "{% macro f() %}{{ 1 | nofilter }}{% endmacro %}",
            None,
            None
        )
        .is_err()
    );
    let guarded = "{% if 0 %}{{ 1 | nofilter }}{% endif %}b";
    assert_eq!(outcome(guarded).unwrap(), "b");
}

#[test]
fn what_is_bounded_computes_what_it_would_without_bounds() {
    let plain = |source: &str| {
        let mut environment = minijinja::Environment::new();
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.render_str(source, ()).unwrap()
    };
    for source in [
        "{{ 1 + 2 }} {{ 1.5 * 2 }} {{ 2 * 3 }} {{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ 7 - 2 }} {{ 2 ** 3 }}",
        "{{ [1] + [2] }} {{ [1] * 2 }} {{ (1, 2) + (3,) }} {{ [1, [2]] + ['a'] | list }}",
        "{{ 1 ~ 'a' ~ none ~ true ~ [1, 'b'] ~ {'c': 2.5} ~ missing }}{{ none }}{{ true }}{{ missing }}{{ ['x'] }}",
        "{{ 'abcd'[1:3] }} {{ 'abcd'[::-1] }} {{ [1, 2, 3][-2:] }} {{ [1, 2, 3][:2][0] }} {{ 'ab'[5:] }}",
        "{{ 'a-b' | replace('-', '+') | upper }}{{ 'a b'.split(' ') | map('upper') | join('-') }}{{ 'aa'.replace('a', 'b') }}",
        "{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | join(', ') }}{{ [1, 2] | select('odd') | list | length }}",
        "{{ [{'a': 'x', 'b': 1}] | selectattr('a', 'equalto', 'x') | list }}{{ [3, 1] | sort }}{{ [1, 1] | unique | list }}",
        "{{ {'a': 1}.items() | list }}{{ {'a': 1} | items | list }}{{ {'a': 1}.get('b', 'none') }}{{ {'a': 1}.keys() | list }}",
        "{% for i in range(5) %}x{% if i == 1 %}yy{% elif i == 2 %}z{% else %}{{ loop.index }}{% endif %}{% else %}n{% endfor %}",
        "{% macro f(a, b='B') %}<{{ a }}{{ b }}{{ caller() }}>{% endmacro %}{% call f('A') %}c{% endcall %}{{ 'end' }}",
        "{% for x in [] %}a{% else %}b{% endfor %}{{ 1 and '' or 'c' }}{{ 'd' if false else 'e' }}",
        "{% block b %}in{% endblock %}{% filter upper %}text{% endfilter %}{{ dict({'a': 1}, b=2) }}",
        "{% for x in [[1], [2, [3]]] recursive %}({{ x if x is number else loop(x) }}){% endfor %}tail",
        "{% set x %}a{{ 1 + 1 }}b{% endset %}{{ x + x }}{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
        "{% if 1 < 2 < 3 and not false %}yes{% endif %}{{ 'b' in 'abc' }}{{ ' x '.strip() }}{{ ' x ' | trim }}",
    ] {
        assert_eq!(outcome(source).unwrap(), plain(source), "{source}");
    }
    let loops = "{% for i in range(9) %}x{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}";
    assert_eq!(outcome(loops).unwrap(), "x0xx2x");
    assert!(error("\n{{ 1 + 'a' }}").contains("line 2"));
    assert!(error("a\n\n{{ {} * 2 }}").contains("line 3"));
}

#[test]
fn the_deepest_template_that_is_accepted_does_not_overflow_the_stack() {
    const LONGEST: usize = (1 << 16) - 16;
    for (before, link, after) in [
        ("1", "+1", ""),
        ("1", "~1", ""),
        ("1", "|e", ""),
        ("a", ".a", ""),
        ("a", "()", ""),
        ("a", "[0]", ""),
        ("1", "**1", ""),
        ("", "-", "1"),
        ("", "not ", "1"),
        ("", "(", "1"),
        ("", "[", "1"),
        ("", "{'a':", "1"),
        ("", "1 if 1 else ", "1"),
    ] {
        // Longer than any accepted length, and as long as possible.
        for length in [LONGEST / link.len(), 2040, 1020, 510] {
            let _ = outcome(&format!(
                "{{{{ {before}{}{after} }}}}",
                link.repeat(length.min(LONGEST / link.len()))
            ));
        }
    }
    for length in [LONGEST / 12 - 2, 512] {
        let _ = outcome(&format!(
            "{{% if 0 %}}{}{{% endif %}}",
            "{% elif 0 %}".repeat(length)
        ));
    }
    let _ = outcome("{% macro f(n) %}{{ f([n]) }}{% endmacro %}{{ f(1) }}");
    let _ = outcome(&"{% if 1 %}".repeat(LONGEST / 10));
    let nest = "{% set ns = namespace(a=[]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% endfor %}";
    let _ = outcome(&format!("{nest}{{{{ ns.a }}}}"));
    let _ = outcome(&format!("{nest}{{{{ ns.a | tojson }}}}"));
}

#[test]
fn a_template_longer_than_any_is_an_error() {
    assert!(error(&"a".repeat(1 << 17)).contains("131072 bytes"));
}

#[test]
fn a_long_conversation_is_rendered_whole() {
    let source = "{% for m in messages %}{{ m.role + ': ' + m.content | trim }}\n{% endfor %}";
    let template = ChatTemplate::new(source, None, None).unwrap();
    let messages = vec![Message::new("user", "x".repeat(10_000)); 2_000];
    assert_eq!(
        template.render(&messages, false).unwrap().len(),
        2_000 * (10_000 + "user: \n".len())
    );
}
