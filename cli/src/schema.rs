//! `vattention schema`: schema of pipeline files, and fields of JSON outputs.

use vattention::config::schema;
use vattention::experiments::study::{
    BaseSample, Bias, Calibration, Coverage, EpsilonStudy, LimitStudy, Normality, Pareto,
    Sensitivity, Tightness,
};
use vattention::experiments::{BenchReport, Comparison, Tuning, Verification};

use crate::fail::{Failure, say};
use crate::json_fields::JsonFields;
use crate::list::ComponentList;

#[derive(Debug, clap::Args)]
pub(crate) struct SchemaArgs {
    /// Print a page on the fields of all JSON outputs instead, as Markdown.
    #[arg(long)]
    outputs: bool,
}

pub(crate) fn run(args: &SchemaArgs) -> Result<(), Failure> {
    if args.outputs { say(outputs().trim_end()) } else { say(&format!("{:#}", schema())) }
}

/// Returns the page on the fields of all JSON outputs.
fn outputs() -> String {
    let mut fields = JsonFields::new();
    fields.add_lineup::<Comparison>("compare");
    fields.add::<Verification>("verify");
    fields.add::<Tightness>("study tightness");
    fields.add::<EpsilonStudy>("study epsilon");
    fields.add::<BaseSample>("study base-sample");
    fields.add::<Normality>("study normality");
    fields.add::<Coverage>("study coverage");
    fields.add::<Bias>("study bias");
    fields.add::<Sensitivity>("study sensitivity");
    fields.add_lineup::<Calibration>("study calibration");
    fields.add_lineup::<Pareto>("study pareto");
    fields.add_lineup::<LimitStudy>("study limit");
    fields.add::<Tuning>("tune");
    fields.add_lineup::<BenchReport>("bench");
    #[cfg(feature = "models")]
    {
        use crate::models::{GenerationReport, StepsDocument};
        fields.add_lineup::<vattention_evaluate::EvaluationReport>("evaluate");
        fields.add_lineup::<vattention_evaluate::PerplexityReport>("perplexity");
        fields.add::<GenerationReport>("generate");
        fields.add::<GenerationReport>("chat");
        fields.add::<StepsDocument>("generate --steps");
    }
    fields.add_plain::<ComponentList>("list");
    fields.finish()
}
