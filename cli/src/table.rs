//! Text tables whose columns have a title, a meaning and cells.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

/// Column of a table whose rows show values of type `T`.
pub(crate) struct Column<'a, T> {
    title: String,
    /// Meaning of the title; empty if the title needs none, or another column's meaning covers it.
    help: &'static str,
    cell: Box<dyn Fn(&T) -> String + 'a>,
    alignment: CellAlignment,
}

impl<'a, T> Column<'a, T> {
    /// Returns a right-aligned column, for numbers.
    pub(crate) fn new(
        title: impl Into<String>,
        help: &'static str,
        cell: impl Fn(&T) -> String + 'a,
    ) -> Self {
        let alignment = CellAlignment::Right;
        Self { title: title.into(), help, cell: Box::new(cell), alignment }
    }

    /// Returns a left-aligned column, for text.
    pub(crate) fn text(
        title: impl Into<String>,
        help: &'static str,
        cell: impl Fn(&T) -> String + 'a,
    ) -> Self {
        Self { alignment: CellAlignment::Left, ..Self::new(title, help, cell) }
    }
}

/// Returns a table with a row per item, followed by the meanings of its columns.
pub(crate) fn show<'i, T: 'i>(
    columns: &[Column<'_, T>],
    items: impl IntoIterator<Item = &'i T>,
) -> String {
    let (rows, legend) = (rows(columns, items), legend(columns));
    if legend.is_empty() { rows } else { format!("{rows}\n\n{legend}") }
}

/// Returns a table with the titles and a row per item.
pub(crate) fn rows<'i, T: 'i>(
    columns: &[Column<'_, T>],
    items: impl IntoIterator<Item = &'i T>,
) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|column| &column.title));
    for item in items {
        table.add_row(columns.iter().map(|column| (column.cell)(item)));
    }
    for (shown, column) in table.column_iter_mut().zip(columns) {
        shown.set_cell_alignment(column.alignment);
    }
    table.to_string()
}

/// Maximum number of characters in a line of a legend.
const WIDTH: usize = 100;

/// Returns the titles with their meanings, wrapped at [`WIDTH`].
pub(crate) fn legend<T>(columns: &[Column<'_, T>]) -> String {
    let explained = || columns.iter().filter(|column| !column.help.is_empty());
    let indent = explained().map(|column| column.title.len() + 2).max().unwrap_or(0);
    let mut lines: Vec<String> = Vec::new();
    for Column { title, help, .. } in explained() {
        lines.push(format!("{title:<indent$}"));
        for word in help.split(' ') {
            let line = lines.last_mut().expect("the line of the title");
            if line.len() > indent && line.len() + 1 + word.len() > WIDTH {
                lines.push(format!("{:indent$}{word}", ""));
                continue;
            }
            let gap = if line.len() > indent { " " } else { "" };
            *line = format!("{line}{gap}{word}");
        }
    }
    lines.join("\n")
}

/// Returns the text, or a dash for `None`.
pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_make_header_cells_and_legend() {
        let long = "the number, which is explained at such a length that its explanation does not \
                    fit into a line of the legend";
        let columns = [
            Column::text("name", "", |n: &u32| format!("n{n}")),
            Column::new("value", long, ToString::to_string),
        ];
        let expected = [
            " name  value ",
            " n7        7 ",
            " n12      12 ",
            "",
            "value  the number, which is explained at such a length that its explanation does not \
             fit into a line",
            "       of the legend",
        ];
        assert_eq!(show(&columns, &[7, 12]), expected.join("\n"));
    }
}
