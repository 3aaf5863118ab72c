//! One file of a model: its header, and the bytes of its tensors.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::header::GgufHeader;
use super::tensor::GgufTensor;
use crate::files::refuse_pointer;
use crate::{Error, Result};

/// Open file whose tensors are within it, aligned, and do not overlap.
#[derive(Debug)]
pub(super) struct GgufPart {
    path: PathBuf,
    file: File,
    pub(super) header: GgufHeader,
}

impl GgufPart {
    /// Reads the header, and checks the positions of the tensors.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Checkpoint`].
    pub(super) fn open(path: &Path) -> Result<Self> {
        refuse_pointer(path)?;
        let file = File::open(path).map_err(|source| Error::file(path, source))?;
        let length = file.metadata().map_err(|source| Error::file(path, source))?.len();
        let refuse = |reason| Error::checkpoint(path, reason);
        let header = GgufHeader::read(BufReader::new(&file), length).map_err(refuse)?;
        check_ranges(&header, length).map_err(refuse)?;
        Ok(Self { path: path.into(), file, header })
    }

    /// Path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the bytes of a tensor of this file.
    pub(super) fn read(&mut self, tensor: &GgufTensor) -> Result<Vec<u8>> {
        let mut bytes = vec![0; tensor.bytes().unwrap_or(0) as usize];
        self.file
            .seek(SeekFrom::Start(self.header.start + tensor.offset))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|source| Error::file(&self.path, source))?;
        Ok(bytes)
    }
}

/// Refuses tensors that are misaligned, overlap, or do not lie completely within a file of `length`
/// bytes. Sizes in the header may be arbitrarily large.
fn check_ranges(header: &GgufHeader, length: u64) -> Result<(), String> {
    let mut places = Vec::new();
    for (name, tensor) in &header.tensors {
        let place = find_range(tensor, header, length)
            .map_err(|reason| format!("tensor `{name}`{reason}"))?;
        places.push((place, name));
    }
    places.sort_by_key(|(place, _)| (place.start, place.end));
    for pair in places.windows(2) {
        let [(first, name), (second, other)] = pair else { continue };
        if first.end > second.start {
            return Err(format!(
                "tensor `{name}` has bytes {} to {} of the file and tensor `{other}` bytes {} to \
                 {}; expected tensors that do not overlap",
                first.start, first.end, second.start, second.end
            ));
        }
    }
    Ok(())
}

/// Byte range of a tensor in a file of `length` bytes.
fn find_range(tensor: &GgufTensor, header: &GgufHeader, length: u64) -> Result<Range<u64>, String> {
    let size = tensor.bytes().ok_or_else(|| {
        let (shape, block) = (&tensor.shape, tensor.stored.block_size());
        format!(
            " has shape {shape:?}; expected rows of a multiple of {block} elements, and fewer \
             elements in all"
        )
    })?;
    let GgufHeader { start, alignment, .. } = *header;
    if !tensor.offset.is_multiple_of(alignment) {
        return Err(format!(
            " begins {} bytes after the header; expected a multiple of the alignment, {alignment}",
            tensor.offset
        ));
    }
    let first = start.checked_add(tensor.offset);
    match first.and_then(|first| Some(first..first.checked_add(size)?)) {
        Some(place) if place.end <= length => Ok(place),
        _ => Err(format!(
            " has {size} bytes from byte {} of {length}; the file is cut",
            start.saturating_add(tensor.offset)
        )),
    }
}
