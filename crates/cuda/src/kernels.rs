//! The sources of the kernels, and with which constants they are compiled.

/// A file of kernels. It includes nothing: the prelude is put before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Its name, for messages.
    pub name: &'static str,
    /// What it says.
    pub text: &'static str,
}

/// A source with its constants: one program for each kind of row, head size and so on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// The kernels.
    pub source: Source,
    /// `#define NAME VALUE`, in order.
    pub constants: Vec<(&'static str, String)>,
}
