//! A command that links a selector with two different names reports an error for every subcommand.
//! The test has no harness, because its program is such a command: the test runs its own program.

#![allow(clippy::unwrap_used)]

use std::process::{Command, ExitCode};

use serde::{Deserialize, Serialize};
use vattention::plugin::schemars::{self, JsonSchema};
use vattention::{
    Result,
    plugin::{Picks, Row, Selector, SelectorConfig, Site, register, typetag},
};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct EveryOther {}

#[typetag::serde(name = "every-other")]
impl SelectorConfig for EveryOther {
    fn build(&self, _: &Site) -> Result<Box<dyn Selector>> {
        Ok(Box::new(self.clone()))
    }
}

impl Selector for EveryOther {
    fn select(&self, _: &Row<'_>, _: &mut Picks) {}
}

register!(Selector, "other", EveryOther, "has two names");

const AS_A_COMMAND: &str = "VATTENTION_TEST_AS_A_COMMAND";

fn main() -> ExitCode {
    if std::env::var_os(AS_A_COMMAND).is_some() {
        return vattention_cli::main();
    }
    for command in ["list", "schema"] {
        let mut program = Command::new(std::env::current_exe().unwrap());
        let output = program.arg(command).env(AS_A_COMMAND, "1").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with("error: `EveryOther` of the crate vattention-cli is"), "{said}");
        assert!(output.stdout.is_empty() && output.status.code() == Some(2), "{command}");
    }
    ExitCode::SUCCESS
}
