//! Size of the binary: the image's where `make static-binary` has built it, else this run's own.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde_json::json;

use crate::measuring::BINARY;
use crate::measuring::figures::mebibytes;
use crate::measuring::report::{Budget, Check, Row};
use crate::world::image_binary;

pub(super) fn measure() -> anyhow::Result<Row> {
    let image = image_binary();
    let (binary, what) = if image.is_file() {
        (image.as_path(), "the image's, static")
    } else {
        (Path::new(BINARY), "dynamic")
    };
    let bytes = fs::metadata(binary)
        .with_context(|| binary.display().to_string())?
        .len();
    Ok(Row {
        checks: vec![Check::new(what, mebibytes(bytes), "MiB", None, Budget::Most(12.0))],
        raw: json!({"bytes": bytes, "isImageBinary": binary == image}),
    })
}
