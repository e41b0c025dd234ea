//! Reads the bodies of requests: JSON, of a bounded length, within a bounded time.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::fields::RequestFields;

/// The JSON of a request, not looked at yet.
pub(crate) struct JsonBody(Bytes);

impl JsonBody {
    /// Refuses fields that are not followed: every body is checked before it is parsed.
    ///
    /// # Errors
    /// As [`RequestFields::check`].
    pub(crate) fn check(&self, fields: &RequestFields) -> ApiResult<()> {
        fields.check(&self.0)
    }

    /// What the request says, as far as `T` has fields for it.
    ///
    /// # Errors
    /// If it is no JSON, is nested deeper than `serde_json` allows (128), or a field has a wrong type.
    pub(crate) fn parse<'a, T: Deserialize<'a>>(&'a self) -> ApiResult<T> {
        let mut json = serde_json::Deserializer::from_slice(&self.0);
        let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let cause = error.inner();
            if cause.is_data() && path != "." {
                ApiError::field(&path, cause.to_string())
            } else {
                ApiError::invalid(format!("the body is no JSON object as expected: {cause}")).with_code("invalid_json")
            }
        })?;
        json.end().map_err(|error| {
            ApiError::invalid(format!("something follows the JSON object: {error}")).with_code("invalid_json")
        })?;
        Ok(parsed)
    }
}

impl FromRequest<Arc<App>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> ApiResult<Self> {
        let kind =
            request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = kind.split(';').next().unwrap_or_default().trim();
        // Pages of other origins may send anything else without asking first.
        if !essence.eq_ignore_ascii_case("application/json") {
            let message = "expected a body with the header Content-Type: application/json";
            return Err(ApiError::refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message));
        }
        let (most, time_out) = (app.options.body_bytes, app.options.client_time_out);
        let too_large = || {
            let message = format!("the body has more than {most} bytes");
            ApiError::refused(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
        };
        let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        if length.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > most as u64) {
            return Err(too_large());
        }
        let body: Limited<Body> = Limited::new(request.into_body(), most);
        let read = tokio::time::timeout(time_out, body.collect()).await.map_err(|_| {
            let message = format!("the body did not arrive within {} s", time_out.as_secs());
            ApiError::refused(StatusCode::REQUEST_TIMEOUT, "request_time_out", message)
        })?;
        match read {
            Ok(read) => Ok(Self(read.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
            Err(error) => Err(ApiError::invalid(format!("the body could not be read: {error}"))),
        }
    }
}
