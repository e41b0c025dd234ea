/* Embeds two texts and prints their cosine.
 *
 *     cc embed.c $(pkg-config --cflags --libs triad) -o embed && ./embed
 */
#include <stdio.h>
#include <triad.h>

int main(void) {
    TriadModel *model = NULL;
    float *one = NULL, *other = NULL, cosine = 0;
    size_t count = 0, i;
    if (triad_model_open("smollm2-135m", NULL, NULL, &model) != TRIAD_STATUS_OK ||
        triad_model_embed(model, "A cat sleeps on the sofa.", NULL, &one, &count) != TRIAD_STATUS_OK ||
        triad_model_embed(model, "A kitten naps on the couch.", NULL, &other, &count) != TRIAD_STATUS_OK) {
        fprintf(stderr, "%s\n", triad_last_error());
        return 1;
    }
    for (i = 0; i < count; i++) cosine += one[i] * other[i];
    printf("%.3f\n", cosine);
    triad_vector_free(one, count);
    triad_vector_free(other, count);
    triad_model_free(model);
    return 0;
}
