//! The text of a tool's result.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// Returns the text of a result, at most `most` bytes of it. Other contents are named.
pub(crate) fn text(result: &CallToolResult, most: usize) -> String {
    let part = |content: &ContentBlock| match content {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => format!("[an image, {}, is left out]", image.mime_type),
        ContentBlock::Audio(audio) => format!("[a sound, {}, is left out]", audio.mime_type),
        ContentBlock::Resource(resource) => match &resource.resource {
            ResourceContents::TextResourceContents { text, .. } => text.clone(),
            ResourceContents::BlobResourceContents { uri, .. } => {
                format!("[the bytes of {uri} are left out]")
            }
            _ => "[a resource is left out]".into(),
        },
        ContentBlock::ResourceLink(link) => format!("[{}]", link.uri),
        _ => "[a part of another kind is left out]".into(),
    };
    let mut text = result
        .content
        .iter()
        .map(part)
        .collect::<Vec<_>>()
        .join("\n");
    if text.is_empty()
        && let Some(value) = &result.structured_content
    {
        text = value.to_string();
    }
    cut(text, most)
}

/// Returns at most `most` bytes of a text, and how many are left out.
pub(crate) fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        let mut end = most;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let cut = text.len() - end;
        text.truncate(end);
        text += &format!("\n[{cut} further bytes are left out]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_its_texts_and_the_rest_is_named_and_long_ones_are_cut() {
        let result: CallToolResult = serde_json::from_value(serde_json::json!({
            "content": [
                {"type": "text", "text": "é1"},
                {"type": "image", "data": "AAAA", "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
            ],
        }))
        .unwrap();
        assert_eq!(
            text(&result, 1000),
            "é1\n[an image, image/png, is left out]\ninside"
        );
        assert_eq!(text(&result, 1), "\n[45 further bytes are left out]");
        let value = serde_json::json!({"content": [], "structuredContent": {"sum": 3}});
        let result: CallToolResult = serde_json::from_value(value).unwrap();
        assert_eq!(text(&result, 1000), r#"{"sum":3}"#);
    }
}
