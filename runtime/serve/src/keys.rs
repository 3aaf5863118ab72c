//! API keys of clients.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Digests of the keys that the server accepts.
pub struct ApiKeys {
    digests: Vec<[u8; 32]>,
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ApiKeys({})", self.digests.len())
    }
}

impl ApiKeys {
    /// Reads keys, one per line; empty lines are ignored.
    ///
    /// # Errors
    /// Returns a message if there is no key, or a key is not printable ASCII without spaces.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).enumerate().filter(|(_, key)| !key.is_empty());
        let mut digests = Vec::new();
        for (index, key) in lines {
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                let line = index + 1;
                return Err(format!("line {line}: expected printable ASCII without spaces"));
            }
            digests.push(digest(key));
        }
        if digests.is_empty() {
            return Err("no keys; expected one per line".into());
        }
        Ok(Self { digests })
    }

    /// Returns true if the headers contain one of the keys. The duration depends neither on which
    /// key matches nor on the number of matching characters.
    pub(crate) fn accept(&self, headers: &HeaderMap) -> bool {
        let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, key)) = header.and_then(|value| value.split_once(' ')) else {
            return false;
        };
        let found = digest(key.trim());
        let equal = self.digests.iter().map(|known| known.ct_eq(&found));
        let fits: bool = equal.fold(Choice::from(0), |any, fits| any | fits).into();
        fits && scheme.eq_ignore_ascii_case("bearer")
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn one_of_the_keys_must_fit() {
        let keys = ApiKeys::parse("first\n\n  second \n").expect("the keys are valid");
        let accepts = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            keys.accept(&HeaderMap::from_iter([(AUTHORIZATION, value)]))
        };
        assert!(accepts("Bearer first") && accepts("bearer second"));
        for wrong in ["Bearer third", "Bearer firs", "Bearer ", "first", "Basic first", ""] {
            assert!(!accepts(wrong), "{wrong}");
        }
        assert!(!keys.accept(&HeaderMap::new()));
        assert_eq!(format!("{keys:?}"), "ApiKeys(2)");
    }

    #[test]
    fn wrong_files_are_refused() {
        assert!(ApiKeys::parse(" \n").is_err_and(|error| error.starts_with("no keys")));
        assert!(ApiKeys::parse("a\nb c").is_err_and(|error| error.starts_with("line 2")));
    }
}
