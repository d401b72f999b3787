fn main() -> kiln::Result<()> {
    let file = kiln::graph_file::GraphFile::read("examples/data/digits.csv.gz".as_ref())?;
    println!("{}", file.graph()?);
    Ok(())
}
