//! The template of a notification's body, in the language of Jinja. Pure.
//!
//! Invariant: a [`Template`] is compiled and has rendered a notice and a warning when it is made. Unknown fields are errors, and the work and
//! the size of one rendering are bounded. A branch for single events or names is checked only by a notice that takes it.

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};

use super::notice::Notice;

/// Steps of one rendering. A template with a loop over the signals takes some hundred.
const MAX_STEPS: u64 = 50_000;
/// The largest template and the largest body.
const MAX_BYTES: usize = 64 * 1024;
const NAME: &str = "notifications.template";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Why a template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The syntax is wrong, or a field or filter is not known.
    #[error("{0}")]
    Invalid(String),
    /// The body begins as JSON and is none.
    #[error("it renders no JSON ({0}); encode each text, as in {{\"text\": {{{{ note | tojson }}}}}}")]
    NotJson(String),
    /// It is larger than the limit.
    #[error("the template or its result has more than {MAX_BYTES} bytes")]
    TooLarge,
}

/// A checked template. The empty one renders the notice itself as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: String,
    content_type: &'static str,
}

impl Default for Template {
    fn default() -> Self {
        Self {
            text: String::new(),
            content_type: JSON,
        }
    }
}

impl Template {
    /// Compiles a template and renders examples, which say what the body is: JSON or text. What begins with a brace is meant to be JSON.
    ///
    /// # Errors
    /// When it cannot be compiled or rendered, or the result is too large, or begins as JSON and is none.
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MAX_BYTES {
            return Err(TemplateError::TooLarge);
        }
        let mut template = Self {
            text: text.to_owned(),
            content_type: JSON,
        };
        for notice in Notice::examples() {
            let body = template.render(&notice)?;
            match serde_json::from_str::<serde_json::Value>(&body) {
                Ok(_) => {}
                Err(error) if body.trim_start().starts_with('{') => {
                    return Err(TemplateError::NotJson(error.to_string()));
                }
                Err(_) => template.content_type = TEXT,
            }
        }
        Ok(template)
    }

    /// The `Content-Type` of the bodies.
    pub fn content_type(&self) -> &'static str {
        self.content_type
    }

    /// The text of the template.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The body for a notice.
    ///
    /// # Errors
    /// When it is too large, or takes too many steps.
    pub fn render(&self, notice: &Notice) -> Result<String, TemplateError> {
        let body = if self.text.is_empty() {
            serde_json::to_string(notice).map_err(|error| TemplateError::Invalid(error.to_string()))?
        } else {
            let mut environment = Environment::new();
            environment.set_undefined_behavior(UndefinedBehavior::Strict);
            environment.set_fuel(Some(MAX_STEPS));
            let rendered = environment.render_named_str(NAME, &self.text, Serde(notice));
            rendered.map_err(|error| TemplateError::Invalid(headgate_core::telemetry::error_chain(&error)))?
        };
        if body.len() > MAX_BYTES {
            return Err(TemplateError::TooLarge);
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_checked_and_rendered() {
        let [notice, _] = Notice::examples();
        for (text, content_type, expected) in [
            ("", JSON, Ok(serde_json::to_string(&notice).unwrap())),
            ("{{ event }} {{ name }}", TEXT, Ok("NodeSignalled node-1".to_owned())),
            (
                r#"{"text": {{ note | tojson }}}"#,
                JSON,
                Ok(r#"{"text": "a \"quoted\" \\ word\nand a second line"}"#.to_owned()),
            ),
            (
                "{% for signal in signals %}[{{ signal }}]{% endfor %}{% if warning %}!{% endif %}",
                TEXT,
                Ok("[headgate.dev/maintenance][deletionTimestamp]".to_owned()),
            ),
            (r#"{"text": "{{ note }}"}"#, JSON, Err("it renders no JSON")),
            ("{{ nothing }}", TEXT, Err("undefined")),
            ("{{ note | nothing }}", TEXT, Err("nothing")),
            ("{% if warning %}{{ nothing }}{% endif %}", TEXT, Err("undefined")),
            ("{% if namespace %}{{ nothing }}{% endif %}", TEXT, Err("undefined")),
            (
                "{% if not signals %}{{ note | nothing }}{% endif %}",
                TEXT,
                Err("nothing"),
            ),
            (
                r#"{"text": {% if warning %}"{{ note }}"{% else %}""{% endif %}}"#,
                JSON,
                Err("it renders no JSON"),
            ),
            ("{% if %}", TEXT, Err("syntax error")),
            ("{% for a in range(100000) %}{{ a }}{% endfor %}", TEXT, Err("")),
            ("{% include 'x' %}", TEXT, Err("")),
        ] {
            let rendered = Template::new(text).and_then(|template| {
                assert_eq!(template.content_type(), content_type, "{text}");
                template.render(&notice)
            });
            match (rendered, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text}: {error}"),
                (found, expected) => panic!("{text}: {found:?} where {expected:?} is expected"),
            }
        }
        assert_eq!(Template::new(&"x".repeat(MAX_BYTES + 1)), Err(TemplateError::TooLarge));
        let doubled = "{{ note * 5000 }}";
        assert!(Template::new(doubled).is_err(), "a body without bound");
    }
}
