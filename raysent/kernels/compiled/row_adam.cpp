// Adam on the rows of a word table, one pass over each; the formulas are those of row_adam.py.

#include <algorithm>
#include <cmath>
#include <cstdint>

extern "C" {

// Updates rows to their values in dense Adam after `num_steps` steps; rows that are up to date are skipped.
//   rows         row indices [num_rows]; may be repeated
//   last         the step up to which each row of the table is updated [table rows]
//   drift        by the step of a row's last gradient: S, and S weighted by eps' / eps [2, drift_size]
void row_adam_catch_up(const int64_t* rows, int64_t num_rows, int64_t dim, float* weight, float* mean, float* square,
                       int64_t* last, int64_t num_steps, const double* drift, int64_t drift_size, double beta1,
                       double beta2, double eps) {
    constexpr double tiny = 1e-30;  // replaces zero in denominators
    for (int64_t i = 0; i < num_rows; i++) {
        const int64_t row = rows[i], since = last[row];
        if (since >= num_steps) continue;
        last[row] = num_steps;
        const double size = drift[since], lag = static_cast<double>(num_steps - since);
        const double eps_between = eps * drift[drift_size + since] / std::max(size, tiny);
        const float total = static_cast<float>(size), small = static_cast<float>(std::max(eps_between, tiny));
        const float decay1 = static_cast<float>(std::pow(beta1, lag)), decay2 = static_cast<float>(std::pow(beta2, lag));
        float* __restrict w = weight + row * dim;
        float* __restrict m = mean + row * dim;
        float* __restrict v = square + row * dim;
        for (int64_t j = 0; j < dim; j++) {
            w[j] -= m[j] / (std::sqrt(v[j]) + small) * total;
            m[j] *= decay1;
            v[j] *= decay2;
        }
    }
}

// Performs one Adam step with the gradients of distinct rows that are up to date.
//   gradient     [num_rows, dim]
//   rate         learning rate / (1 - beta1^step)
//   correction   sqrt(1 - beta2^step)
void row_adam_step(const int64_t* rows, int64_t num_rows, int64_t dim, float* weight, float* mean, float* square,
                   int64_t* last, int64_t step, const float* gradient, double rate, double correction, double beta1,
                   double beta2, double eps) {
    const float keep1 = static_cast<float>(beta1), new1 = static_cast<float>(1 - beta1);
    const float keep2 = static_cast<float>(beta2), new2 = static_cast<float>(1 - beta2);
    // rate m / (sqrt(v) / correction + eps), with one division per value instead of two
    const float size = static_cast<float>(rate * correction), small = static_cast<float>(eps * correction);
    for (int64_t i = 0; i < num_rows; i++) {
        const int64_t row = rows[i];
        last[row] = step;
        const float* __restrict g = gradient + i * dim;
        float* __restrict w = weight + row * dim;
        float* __restrict m = mean + row * dim;
        float* __restrict v = square + row * dim;
        for (int64_t j = 0; j < dim; j++) {
            m[j] = m[j] * keep1 + g[j] * new1;
            v[j] = v[j] * keep2 + g[j] * g[j] * new2;
            w[j] -= size * m[j] / (std::sqrt(v[j]) + small);
        }
    }
}
}
