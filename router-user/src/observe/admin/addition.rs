//! The body of `POST /backends`: a backend as a flag would say it, or as an object with the same keys.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde_json::{Map, Value};

use crate::config::{BackendConfig, backend};

/// Bytes of a key file read at most.
const KEY_BYTES_MAX: u64 = 64 << 10;

/// Reads the body.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(body: &[u8]) -> Result<BackendConfig, String> {
    let value: Value = serde_json::from_slice(body).map_err(|e| format!("the body is no JSON: {e}"))?;
    let Value::Object(mut members) = value else { return Err("the body is no JSON object".to_owned()) };
    let text = match members.remove("backend") {
        Some(_) if !members.is_empty() => return Err("`backend` is given beside other members".to_owned()),
        Some(Value::String(text)) => text,
        Some(Value::Object(members)) => as_text(members)?,
        Some(_) => return Err("`backend` is neither a text nor an object".to_owned()),
        None => as_text(members)?,
    };
    backend::parse(&text, &read_key)
}

/// The object as the flag's text.
fn as_text(mut members: Map<String, Value>) -> Result<String, String> {
    let Some(Value::String(mut text)) = members.remove("url") else {
        return Err("neither `backend` nor `url` is a text".to_owned());
    };
    if text.contains(',') {
        return Err("`url` holds a comma".to_owned());
    }
    for (key, value) in members {
        for value in values(&key, value)? {
            if value.contains(',') {
                return Err(format!("`{key}` holds a comma"));
            }
            text += &format!(",{key}={value}");
        }
    }
    Ok(text)
}

/// The values of one key: a list is the key repeated, an object (labels) one value.
fn values(key: &str, value: Value) -> Result<Vec<String>, String> {
    let scalar = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Number(n) => Ok(n.to_string()),
        other => Err(format!("`{key}`: {other} is neither a text nor a number")),
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(values) => values.into_iter().map(scalar).collect(),
        Value::Object(labels) => {
            let label = |(name, value)| Ok(format!("{name}:{}", scalar(value)?));
            let labels = labels.into_iter().map(label).collect::<Result<Vec<_>, String>>()?;
            match labels.iter().any(|label| label.contains(';')) {
                true => Err(format!("`{key}` holds a semicolon")),
                false => Ok(vec![labels.join(";")]),
            }
        }
        value => scalar(value).map(|value| vec![value]),
    }
}

/// Reads a key file that a caller names: a plain file of bounded size, so that no device or pipe holds us up.
fn read_key(path: &Path) -> io::Result<String> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no plain file"));
    }
    let mut text = String::new();
    file.take(KEY_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_text_and_an_object_say_the_same() {
        let text = r#"{"backend":"http://h:1/base,model=m,alias=a,alias=b,max-in-flight=9,weight=0.5,labels=tier:b;zone:a"}"#;
        let expected = format!("{:?}", parse(text.as_bytes()).unwrap());
        let members = r#""url":"http://h:1/base","model":"m","alias":["a","b"],"max-in-flight":9,"weight":0.5,"kv-tokens":null,
            "labels":{"tier":"b","zone":"a"}"#;
        for object in [format!("{{{members}}}"), format!("{{\"backend\":{{{members}}}}}")] {
            assert_eq!(format!("{:?}", parse(object.as_bytes()).unwrap()), expected);
        }
    }

    #[test]
    fn wrong_bodies_are_refused_with_the_reason() {
        for (body, part) in [
            ("", "no JSON"),
            ("{", "no JSON"),
            ("[]", "no JSON object"),
            ("{}", "neither"),
            (r#"{"backend":1}"#, "neither"),
            (r#"{"backend":"ftp://h"}"#, "no URL"),
            (r#"{"backend":"http://h","model":"m"}"#, "beside"),
            (r#"{"url":"http://h,model=x"}"#, "comma"),
            (r#"{"url":"http://h","model":"a,weight=9"}"#, "comma"),
            (r#"{"url":"http://h","model":true}"#, "neither"),
            (r#"{"url":"http://h","labels":{"a":"b;c:d"}}"#, "semicolon"),
            (r#"{"url":"http://h","modle":"m"}"#, "no such option"),
            (r#"{"url":"http://h","max-in-flight":-1}"#, "whole number"),
            (r#"{"url":"http://h","api-key-file":"/dev/zero"}"#, "no plain file"),
            (r#"{"url":"http://h","api-key-file":"/nowhere"}"#, "cannot read"),
        ] {
            let error = parse(body.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{body}: {error}");
        }
    }
}
