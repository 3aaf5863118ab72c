//! Tests of the backends' public interface, with the library's selectors, samplers and estimators.

#![allow(clippy::unwrap_used)]

mod sharing;

// Linked for the plug-ins that they register.
use vattention_estimators as _;
use vattention_samplers as _;
use vattention_selectors as _;
