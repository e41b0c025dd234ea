//! Parts of a request's path.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// An extractor of the parts of a path that a route names, such as `{id}`. Unlike [`Path`], it refuses a part that is no
/// UTF-8 in the form of the other errors.
pub(crate) struct UrlPath<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for UrlPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let part = Path::<T>::from_request_parts(parts, state).await;
        part.map(|Path(part)| Self(part))
            .map_err(|error| ApiError::invalid(error.body_text()).with_code("invalid_value"))
    }
}
