//! HTTP server of the OpenAI API whose models decode by pipelines.

mod engine;
