//! Calls a tool of an MCP server: `call SERVER TOOL ARGUMENTS`, with SERVER as for `triad run --mcp`. Without a tool, lists
//! the tools.

use triad_mcp::{Config, Limits, Servers};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let [server, rest @ ..] = &words[..] else {
        return Err("expected SERVER, TOOL and ARGUMENTS".into());
    };
    let config = Config::read(&[server])?;
    let never = || false;
    let servers = Servers::connect(&config.servers, Limits::default(), &never, &mut |_| {})?;
    let [name, arguments] = rest else {
        for tool in servers.tools() {
            println!("{} {}", tool.name, tool.schema);
        }
        return Ok(());
    };
    let mut tools = servers.tools().iter();
    let tool = tools.find(|tool| tool.name == *name);
    let tool = tool.ok_or("there is no such tool")?;
    let result = servers.call(tool, serde_json::from_str(arguments)?, &never)?;
    println!(
        "{}{}",
        if result.is_error { "error: " } else { "" },
        result.text
    );
    Ok(())
}
