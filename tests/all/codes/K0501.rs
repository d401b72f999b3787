fn main() -> kiln::Result<()> {
    let text = r#"kiln 1
graph @f(%0 "x": f32[] @cpu) {
  %1 = custom "twice" %0 : f32[] @cpu
  return %1 "y"
}
"#;
    kiln::ir::grad::append(&kiln::ir::parse(text)?, "y", &["x"])?;
    Ok(())
}
