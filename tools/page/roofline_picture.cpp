#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "compiler/families/family.h"
#include "tools/page/markup.h"
#include "tools/page/pictures.h"

namespace flashjit {
namespace {

constexpr double kPlotLeft = 52, kPlotRight = 452, kPlotTop = 12, kPlotBottom = 330, kPlotWidth = 480,
                 kPlotHeight = 372;
constexpr double kLabelGap = 15, kRoomOfName = 100;
constexpr double kNameBelowOther = 34, kNear = 170, kNearHeight = 22;
constexpr double kRoomForLabels = 0.02;  // a share of the intensity at which slope and ceiling meet

struct Ceiling {
  std::string words;
  double tflops = 0;
  bool softly = false;  // No unit of products reaches this ceiling.
};

// The spec decides how many products stand beside an exponential, so their ceiling belongs to the spec and not to the
// target.
std::vector<Ceiling> ceilings_of(const Plan& plan, const Roofline& r) {
  const Target& target = plan.target;
  const double clocks = target.clock_ghz * target.sm_count * 1e-3;
  const bool narrow = size_of(plan.spec.dtype) == 1;
  std::vector<Ceiling> all;
  const auto add = [&](const char* words, double flops_per_clock) {
    if (flops_per_clock > 0) all.push_back({words, flops_per_clock * clocks});
  };
  add(target.gpu ? "mma.sync, 16 bits" : "fp32", target.mma_flops_per_clock);
  add("WGMMA, 16 bits", target.wgmma_flops_per_clock);
  if (narrow) add("mma.sync, 8 bits", target.narrow_mma_flops_per_clock);
  if (narrow) add("WGMMA, 8 bits", 2 * target.wgmma_flops_per_clock);
  if (r.predicted.exp > 0) all.push_back({"exponentials", r.flops / r.predicted.exp * 1e-6, true});
  std::ranges::sort(all, {}, &Ceiling::tflops);
  return all;
}

// This class has logarithmic axes, which begin at powers of ten so that these have labels.
class Axes {
 public:
  Axes(double x_low, double x_high, double y_low, double y_high)
      : x0_(std::floor(std::log10(x_low))),
        x1_(std::log10(x_high)),
        y0_(std::floor(std::log10(y_low))),
        y1_(std::log10(y_high)) {}
  double x(double value) const {
    return kPlotLeft + (std::log10(value) - x0_) / (x1_ - x0_) * (kPlotRight - kPlotLeft);
  }
  double y(double value) const {
    return kPlotBottom - (std::log10(value) - y0_) / (y1_ - y0_) * (kPlotBottom - kPlotTop);
  }
  double lowest_x() const { return std::pow(10, x0_); }
  // Returns the number at this height.
  double y_value(double height) const {
    return std::pow(10, y0_ + (kPlotBottom - height) / (kPlotBottom - kPlotTop) * (y1_ - y0_));
  }
  double lowest_y() const { return std::pow(10, y0_); }
  std::string drawn() const;

 private:
  double x0_, x1_, y0_, y1_;
};

std::string Axes::drawn() const {
  std::string out;
  for (double power = x0_; power <= x1_; ++power) {
    const double at = x(std::pow(10, power));
    out += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" />"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>\n",
        at, kPlotTop, kPlotBottom, kPlotBottom + 16, std::pow(10, power));
  }
  for (double power = y0_; power <= y1_; ++power) {
    const double at = y(std::pow(10, power));
    out += fmt::format(
        "<line class=\"grid\" x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" />"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        at, kPlotLeft, kPlotRight, kPlotLeft - 6, at + 4, std::pow(10, power));
  }
  return out +
         fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">FLOP per byte of memory</text>\n", kPlotRight,
                     kPlotBottom + 34) +
         fmt::format("<text transform=\"translate(12 {}) rotate(-90)\">TFLOP/s</text>\n", kPlotBottom);
}

// Labels stand left of the slope, where nothing else is, each beside its line or below the label above.
std::string drawn_ceilings(const Axes& axes, const std::vector<Ceiling>& ceilings, double tbs) {
  std::string out;
  double last = -kLabelGap;
  for (auto ceiling = ceilings.rbegin(); ceiling != ceilings.rend(); ++ceiling) {
    const double at = axes.y(ceiling->tflops);
    const double begin = std::clamp(axes.x(ceiling->tflops / tbs), kPlotLeft, kPlotRight);
    last = std::max(at + 4, last + kLabelGap);
    out += fmt::format(
        "<line class=\"ceiling{}\" x1=\"{:.1f}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" />"
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}: {:.4g}</text>\n",
        ceiling->softly ? " softly" : "", begin, kPlotRight, at, at, axes.x(axes.y_value(last) / tbs) - 8, last,
        ceiling->words, ceiling->tflops);
  }
  return out;
}

struct RooflinePoint {
  const char *words, *colour;
  double intensity = 0, tflops = 0, roof = 0;
  double below = 18;  // distance from the point to the foot of its name
};

std::string drawn_point(const Axes& axes, const RooflinePoint& point) {
  const double x = axes.x(point.intensity), y = axes.y(point.tflops);
  const bool right = x + kRoomOfName < kPlotRight;
  return fmt::format(
      "<line class=\"drop\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" />"
      "<circle class=\"point {3}\" cx=\"{0:.1f}\" cy=\"{1:.1f}\" r=\"6\"><title>{7:.4g} FLOP per byte, {8:.4g} "
      "TFLOP/s</title></circle><text class=\"strong\" x=\"{4:.1f}\" y=\"{5:.1f}\" text-anchor=\"{6}\">{9}</text>\n",
      x, y, axes.y(point.roof), point.colour, right ? x + 10 : x - 10, y + point.below, right ? "start" : "end",
      point.intensity, point.tflops, point.words);
}

// If points are near, the name of the last stands below that of the first.
void keep_names_apart(const Axes& axes, std::vector<RooflinePoint>& points) {
  const RooflinePoint& first = points.front();
  RooflinePoint& last = points.back();
  if (points.size() < 2 || std::abs(axes.x(first.intensity) - axes.x(last.intensity)) > kNear) return;
  if (std::abs(axes.y(first.tflops) - axes.y(last.tflops)) < kNearHeight) last.below = kNameBelowOther;
}

std::string roofline_caption(const Roofline& r, double tbs, const std::vector<RooflinePoint>& points) {
  std::string caption =
      fmt::format("The slope is memory at {} TB/s. Fused: {:.4g} FLOP per byte, {:.4g} TFLOP/s as predicted.", tbs,
                  r.intensity, points.front().tflops);
  if (points.size() > 1)
    caption += fmt::format(
        " Three textbook steps, where scores and probabilities go through memory: {:.4g} FLOP per byte, at most {:.4g} "
        "TFLOP/s.",
        r.textbook_intensity, points.back().tflops);
  if (r.predicted.exp > 0) caption += " The dashed ceiling is what the exponentials of this spec allow.";
  return caption;
}

}  // namespace

std::string roofline_picture(const Plan& plan, const Roofline& r) {
  const double tbs = plan.target.memory_tbs, total = r.predicted.total;
  if (tbs <= 0 || r.flops <= 0 || total <= 0 || r.intensity <= 0) return {};
  const std::vector<Ceiling> ceilings = ceilings_of(plan, r);
  double top = 0;  // the highest ceiling that products reach
  for (const Ceiling& ceiling : ceilings) top = ceiling.softly ? top : std::max(top, ceiling.tflops);
  const auto below_roof = [&](double intensity) { return std::min(top, intensity * tbs); };
  const double reached = r.flops / total * 1e-6;
  std::vector<RooflinePoint> points = {{"fused", "fused", r.intensity, reached, below_roof(r.intensity)}};
  if (r.score_bytes_never_written > 0) {
    const double roof = below_roof(r.textbook_intensity);
    points.push_back({"three steps", "textbook", r.textbook_intensity, roof, roof});
  }
  double x_low = top / tbs * kRoomForLabels, x_high = top / tbs, y_low = top, y_high = top;
  for (const RooflinePoint& point : points) {
    x_low = std::min(x_low, point.intensity), x_high = std::max(x_high, point.intensity);
    y_low = std::min(y_low, point.tflops);
  }
  for (const Ceiling& ceiling : ceilings) y_high = std::max(y_high, ceiling.tflops);
  const Axes axes(x_low * 0.5, x_high * 2, y_low * 0.5, y_high * 1.3);
  const double first = std::max(axes.lowest_x(), axes.lowest_y() / tbs);
  std::string drawn = axes.drawn() + drawn_ceilings(axes, ceilings, tbs);
  drawn += fmt::format("<path class=\"roof-line\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\" />\n", axes.x(first),
                       axes.y(first * tbs), axes.x(top / tbs), axes.y(top));
  keep_names_apart(axes, points);
  for (const RooflinePoint& point : points) drawn += drawn_point(axes, point);
  return picture_of("roofline", kPlotWidth, kPlotHeight, "roofline on logarithmic axes", drawn) + "<p class=\"note\">" +
         escaped(roofline_caption(r, tbs, points)) + "</p>\n";
}

std::string units_picture(const Roofline& r) {
  const Prediction& p = r.predicted;
  const std::pair<const char*, double> units[] = {
      {"matrix units", p.mma}, {"exponentials", p.exp}, {"issue", p.issue}, {"shared memory", p.smem}, {"L2", p.l2},
      {"memory", p.memory}};
  if (p.total <= 0) return {};
  std::string bars;
  for (const auto& [name, us] : units) {
    bars += fmt::format(
        "<li{}><span>{}</span><span class=\"value\">{:.1f} us</span>"
        "<span class=\"track\"><span class=\"bar\" style=\"width:{:.1f}%\"></span></span></li>\n",
        name == r.limit ? " class=\"limit\"" : "", name, us, std::min(100.0, 100 * us / p.total));
  }
  return fmt::format(
      "<p>{:.1f} us predicted; the limit is: {}</p>\n<ul class=\"bars\">\n{}</ul>\n"
      "<p class=\"note\">Each unit by itself, side by side: a full bar is the whole predicted time, and bars add up to "
      "no time. {:.2f} waves.</p>\n",
      p.total, escaped(r.limit), bars, p.waves);
}

}  // namespace flashjit
