//! Rows of a dataset's file: JSON lines, a JSON array, or parquet.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use parquet::basic::Compression;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Map, Value};

use crate::error::{read, utf8};
use crate::{Error, Result};

/// Ends of the files' names; the last one is that of Hugging Face's `datasets`.
pub(super) const ENDS: &[&str] = &[".jsonl", ".json", ".parquet", "-00000-of-00001.parquet"];
/// Largest number of wrong lines that a message lists; it counts the others.
const MOST_REPORTED: usize = 20;

/// Row of a file: values by the names of their columns.
pub(super) struct DatasetRow(Map<String, Value>);

impl DatasetRow {
    pub(super) fn column(&self, names: &[&str]) -> Result<&Value, String> {
        names.iter().find_map(|name| self.0.get(*name)).ok_or_else(|| {
            let columns: Vec<&str> = self.0.keys().map(String::as_str).collect();
            format!("no column {}; it has {}", names.join(" or "), columns.join(", "))
        })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Reads a text or a whole number.
    pub(super) fn text(&self, names: &[&str]) -> Result<String, String> {
        match self.column(names)? {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) if number.is_i64() || number.is_u64() => Ok(number.to_string()),
            other => Err(format!("{} is {}; expected text", names.join(" or "), kind(other))),
        }
    }

    /// Reads one of several texts.
    pub(super) fn one_of(&self, name: &str, expected: &[&str]) -> Result<String, String> {
        let text = self.text(&[name])?;
        if !expected.contains(&text.as_str()) {
            return Err(format!("{name} is {text:?}; expected one of {}", expected.join(", ")));
        }
        Ok(text)
    }

    /// Reads a list of texts, at least one.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        let value = self.column(&[name])?;
        let wrong = || format!("{name} is {}; expected a list of texts, at least one", kind(value));
        let items = value.as_array().filter(|items| !items.is_empty()).ok_or_else(wrong)?;
        let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
        texts.collect::<Option<_>>().ok_or_else(wrong)
    }

    /// Reads texts or numbers, at least one: a single one, a list, or a nested list.
    pub(super) fn texts_or_numbers(&self, name: &str) -> Result<Vec<String>, String> {
        let value = self.column(&[name])?;
        let mut items = std::slice::from_ref(value);
        while let [Value::Array(inner)] = items {
            items = inner;
        }
        let text = |item: &Value| match item {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let texts = items.iter().map(text).collect::<Option<Vec<_>>>();
        let found =
            || format!("{name} is {}; expected texts or numbers, at least one", kind(value));
        texts.filter(|texts| !texts.is_empty()).ok_or_else(found)
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, String> {
        let value = self.column(&[name])?;
        value.as_u64().ok_or_else(|| format!("{name} is {}; expected a whole number", kind(value)))
    }
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(items) if items.is_empty() => "an empty list",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Converts each row, and returns all results or the errors of all wrong rows.
pub(super) fn parse<T>(
    path: &Path,
    mut convert: impl FnMut(&DatasetRow) -> Result<T, String>,
) -> Result<Vec<T>> {
    let (mut converted, mut wrong) = (Vec::new(), Vec::new());
    let rows = match path.extension() {
        Some(extension) if extension == "parquet" => catch_parquet_panics(path)?,
        Some(extension) if extension == "json" => items(path)?,
        _ => lines(path)?,
    };
    for row in rows {
        let (place, row) = row?;
        match row.and_then(|row| convert(&row)) {
            Ok(row) => converted.push(row),
            Err(reason) => wrong.push(format!("{place}: {reason}")),
        }
    }
    if let Some(more) = wrong.len().checked_sub(MOST_REPORTED).filter(|more| *more > 0) {
        wrong.truncate(MOST_REPORTED);
        wrong.push(format!("and {more} more"));
    }
    if !wrong.is_empty() {
        return Err(Error::malformed(path, wrong.join("\n  ")));
    }
    if converted.is_empty() {
        return Err(Error::malformed(path, "there is no row; expected a case in each"));
    }
    Ok(converted)
}

/// Position of a row for messages, and the row or its error.
type PlacedRow = (String, Result<DatasetRow, String>);
/// Rows one after the other, because files may be large.
type DatasetRows = Box<dyn Iterator<Item = Result<PlacedRow>>>;

/// Reads the lines of a file that are not blank, each a JSON object.
fn lines(path: &Path) -> Result<DatasetRows> {
    let (path, mut number, mut begins) = (path.to_owned(), 0, 0);
    let failed = |path: &Path, source| Error::File { path: path.into(), source };
    let mut file = BufReader::new(File::open(&path).map_err(|source| failed(&path, source))?);
    let mut next = move || -> Result<Option<PlacedRow>> {
        loop {
            let mut line = Vec::new();
            let bytes =
                file.read_until(b'\n', &mut line).map_err(|source| failed(&path, source))?;
            if bytes == 0 {
                return Ok(None);
            }
            let line = utf8(&path, begins, line)?;
            (number, begins) = (number + 1, begins + bytes);
            let line = line.trim_end_matches(['\n', '\r']);
            if !line.trim().is_empty() {
                return Ok(Some((format!("line {number}"), object(line))));
            }
        }
    };
    Ok(Box::new(std::iter::from_fn(move || next().transpose())))
}

fn object(line: &str) -> Result<DatasetRow, String> {
    serde_json::from_str(line).map(DatasetRow).map_err(|error| {
        let message = error.to_string();
        let what = message.split(" at line ").next().unwrap_or_default();
        format!("{what} at column {}; expected a JSON object", error.column())
    })
}

/// Reads the items of a JSON array of objects, or JSON lines.
fn items(path: &Path) -> Result<DatasetRows> {
    let text = read(path)?;
    if !text.trim_start().starts_with('[') {
        return lines(path);
    }
    let items: Vec<Value> = serde_json::from_str(&text)
        .map_err(|error| Error::malformed(path, format!("{error}; expected a JSON array")))?;
    let row = |item| match item {
        Value::Object(columns) => Ok(DatasetRow(columns)),
        other => Err(format!("it is {}; expected an object", kind(&other))),
    };
    let place = move |(number, item)| Ok((format!("item {}", number + 1), row(item)));
    Ok(Box::new(items.into_iter().enumerate().map(place)))
}

/// Reads the rows of a parquet file; the library panics on some damaged files.
fn catch_parquet_panics(path: &Path) -> Result<DatasetRows> {
    let damaged = |_| Err(Error::malformed(path, "it is damaged; expected a parquet file"));
    let rows = std::panic::catch_unwind(|| parquet_rows(path)).unwrap_or_else(damaged)?;
    Ok(Box::new(rows.into_iter().map(Ok)))
}

/// Returns the name of a column's compression, if it is not supported.
fn find_unsupported_codec(column: &ColumnChunkMetaData) -> Option<String> {
    match column.compression() {
        Compression::UNCOMPRESSED
        | Compression::SNAPPY
        | Compression::GZIP(_)
        | Compression::ZSTD(_) => None,
        Compression::LZ4 | Compression::LZ4_RAW => Some("lz4".into()),
        other => Some(other.to_string().to_lowercase()),
    }
}

/// Reads the rows of a parquet file.
fn parquet_rows(path: &Path) -> Result<Vec<PlacedRow>> {
    let file = File::open(path).map_err(|source| Error::File { path: path.into(), source })?;
    let wrong = |error| Error::malformed(path, format!("{error}; expected a parquet file"));
    let reader = SerializedFileReader::new(file).map_err(wrong)?;
    let groups = reader.metadata().row_groups().iter();
    if let Some(codec) = groups.flat_map(RowGroupMetaData::columns).find_map(find_unsupported_codec)
    {
        return Err(Error::malformed(
            path,
            format!(
                "it is compressed with {codec}; expected uncompressed, snappy, gzip or zstd: \
                 write it again with one of them"
            ),
        ));
    }
    let mut rows = Vec::new();
    for (number, row) in reader.get_row_iter(None).map_err(wrong)?.enumerate() {
        let row = match row.map_err(wrong)?.to_json_value() {
            Value::Object(columns) => Ok(DatasetRow(columns)),
            other => Err(format!("it is {}; expected columns", kind(&other))),
        };
        rows.push((format!("row {}", number + 1), row));
    }
    Ok(rows)
}
