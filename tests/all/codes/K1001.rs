fn main() -> kiln::Result<()> {
    let file = kiln::graph_file::GraphFile::read("no/such/step.kiln".as_ref())?;
    println!("{}", file.graph()?);
    Ok(())
}
