//! The template of a notification's body, in the language of Jinja. Pure.
//!
//! Invariant: a [`Template`] renders every notice: it is compiled and rendered with an example when it is made, unknown
//! fields are errors, and the work and the size of one rendering are bounded.

use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior};

use super::notice::Notice;

/// Steps of one rendering. A template with a loop over the signals takes some hundred.
const MAX_STEPS: u64 = 50_000;
/// The largest template and the largest body.
const MAX_BYTES: usize = 64 * 1024;
const NAME: &str = "notifications.template";

/// Why a template cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The syntax is wrong, or a field or filter is not known.
    #[error("{0}")]
    Invalid(String),
    /// The body would not be JSON, although the content type says so.
    #[error("it renders no JSON ({0}); encode each text, as in {{\"text\": {{{{ note | tojson }}}}}}")]
    NotJson(String),
    /// It is larger than the limit.
    #[error("the template or its result has more than {MAX_BYTES} bytes")]
    TooLarge,
}

/// A checked template. The empty one renders the notice itself as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(String);

impl Template {
    /// Compiles a template and renders an example. With `is_json` the result must be JSON.
    ///
    /// # Errors
    /// When it cannot be compiled or rendered, or the result is no JSON or too large.
    pub fn new(text: &str, is_json: bool) -> Result<Self, TemplateError> {
        if text.len() > MAX_BYTES {
            return Err(TemplateError::TooLarge);
        }
        let template = Self(text.to_owned());
        let body = template.render(&Notice::example())?;
        if is_json {
            let parsed: Result<serde_json::Value, _> = serde_json::from_str(&body);
            parsed.map_err(|error| TemplateError::NotJson(error.to_string()))?;
        }
        Ok(template)
    }

    /// The text of the template.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The body for a notice.
    ///
    /// # Errors
    /// When it is too large, or takes too many steps.
    pub fn render(&self, notice: &Notice) -> Result<String, TemplateError> {
        let body = if self.0.is_empty() {
            serde_json::to_string(notice).map_err(|error| TemplateError::Invalid(error.to_string()))?
        } else {
            let mut environment = Environment::new();
            environment.set_undefined_behavior(UndefinedBehavior::Strict);
            environment.set_fuel(Some(MAX_STEPS));
            let rendered = environment.render_named_str(NAME, &self.0, Serde(notice));
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
        for (text, is_json, expected) in [
            ("", true, Ok(serde_json::to_string(&Notice::example()).unwrap())),
            ("{{ event }} {{ name }}", false, Ok("NodeSignalled node-1".to_owned())),
            (
                r#"{"text": {{ note | tojson }}}"#,
                true,
                Ok(r#"{"text": "a \"quoted\" \\ word\nand a second line"}"#.to_owned()),
            ),
            (
                "{% for signal in signals %}[{{ signal }}]{% endfor %}{% if warning %}!{% endif %}",
                false,
                Ok("[headgate.dev/maintenance][deletionTimestamp]".to_owned()),
            ),
            (r#"{"text": "{{ note }}"}"#, true, Err("it renders no JSON")),
            ("{{ nothing }}", false, Err("undefined")),
            ("{{ note | nothing }}", false, Err("nothing")),
            ("{% if %}", false, Err("syntax error")),
            ("{% for a in range(100000) %}{{ a }}{% endfor %}", false, Err("")),
            ("{% include 'x' %}", false, Err("")),
        ] {
            let rendered = Template::new(text, is_json).and_then(|template| template.render(&Notice::example()));
            match (rendered, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{text}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text}: {error}"),
                (found, expected) => panic!("{text}: {found:?} where {expected:?} is expected"),
            }
        }
        assert_eq!(
            Template::new(&"x".repeat(MAX_BYTES + 1), false),
            Err(TemplateError::TooLarge)
        );
        let doubled = "{{ note * 5000 }}";
        assert!(Template::new(doubled, false).is_err(), "a body without bound");
    }
}
