//! Label selectors, with all their operators.

use super::Labels;
use trysail_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// A selector; without requirements it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

/// What is wrong with a selector: a field below it, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSelector(pub String, pub String);

impl Selector {
    /// Reads a selector.
    pub fn read(selector: &LabelSelector) -> Result<Self, BadSelector> {
        let equal = selector.match_labels.iter().flatten();
        let mut all: Vec<Requirement> = equal.map(|(k, v)| Requirement::In(k.clone(), vec![v.clone()])).collect();
        for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
            let at = |field: &str| format!("matchExpressions[{index}].{field}");
            let (key, values) = (expression.key.clone(), expression.values.clone().unwrap_or_default());
            if key.is_empty() {
                return Err(BadSelector(at("key"), "a key is needed".into()));
            }
            all.push(match (expression.operator.as_str(), values.is_empty()) {
                ("In", false) => Requirement::In(key, values),
                ("NotIn", false) => Requirement::NotIn(key, values),
                ("In" | "NotIn", true) => return Err(BadSelector(at("values"), "needed by In and NotIn".into())),
                ("Exists", true) => Requirement::Exists(key),
                ("DoesNotExist", true) => Requirement::DoesNotExist(key),
                ("Exists" | "DoesNotExist", false) => {
                    return Err(BadSelector(at("values"), "not with Exists or DoesNotExist".into()));
                }
                (other, _) => {
                    let message = format!("{other:?} is not In, NotIn, Exists or DoesNotExist");
                    return Err(BadSelector(at("operator"), message));
                }
            });
        }
        Ok(Self(all))
    }

    /// Whether something with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|v| !values.contains(v)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::DoesNotExist(key) => !labels.contains_key(key),
        })
    }
}
