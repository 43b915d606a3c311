"""The page of a partition: plain HTML, CSS and one image, without scripts or anything from a network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from fedmuon.data.heterogeneity import ClientFigures, Heterogeneity
from fedmuon.data.partition import Partition
from fedmuon.errors import shown
from fedmuon.report.binned import binned

MOST_ROWS = 400  # lines of the heat map: more clients are averaged
MOST_LISTED = 1000  # clients in the table
INK = (47, 126, 216)  # readable on white and on black


def page(
    partition: Partition,
    labels: np.ndarray,
    classes: Sequence[str],
    each: ClientFigures,
    whole: Heterogeneity,
    validation: int,
    settings: Mapping[str, Any],
) -> str:
    """The whole page as text. labels: int [n], indices into `classes`;  validation: number of held-out samples."""
    kind = str(settings["partition"].get("name", "partition"))
    title = f"{kind}: {whole.clients:,} clients"
    notes = "".join(f"<p class=note>{escape(note)}</p>" for note in partition.notes)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{CSS}</style></head><body><main>
<h1>{escape(title)}</h1>
<p class=settings>{_settings(settings)}</p>{notes}
<section class=tiles>{_tiles(whole, len(classes), validation)}</section>
<h2>Labels and sizes</h2>
{_picture(partition, labels, classes, each)}
<h2>Across clients</h2>
{_quantiles(each)}
<details><summary>Classes</summary>{_class_table(partition, labels, classes)}</details>
<details{" open" if whole.clients <= 20 else ""}><summary>Clients</summary>
{_client_table(partition, classes, each)}</details>
</main></body></html>
"""


def _settings(settings: Mapping[str, Any]) -> str:
    words = [("seed", settings.get("seed"))]
    for group in ("data", "partition"):
        node = dict(settings[group])
        words += [(group, node.pop("name", ""))]
        if group == "partition":
            words += [(f"{group}.{key}", value) for key, value in node.items() if key not in ("_target_", "seed")]
    return " ".join(f"<code>{escape(f'{key}={shown(value)}')}</code>" for key, value in words)


def _tiles(whole: Heterogeneity, classes: int, validation: int) -> str:
    sizes = f"{whole.size_median:,.0f}"
    tiles = [
        ("samples a client", sizes, f"median; {whole.size_min:,} to {whole.size_max:,}, Gini {whole.size_gini:.2f}"),
        ("classes a client", f"{whole.mean_classes:.1f}", f"mean, of {classes}"),
        ("largest class", f"{100 * whole.mean_largest_share:.0f} %", "mean share of a client's most frequent class"),
        ("distance", f"{whole.mean_distance:.2f}", "mean total variation to all training labels, 0 to 1"),
        ("samples", f"{whole.different:,}", f"different ones with clients; {validation:,} held out for validation"),
        ("repeated", f"{whole.repeated:,}", "entries of samples that a client already has"),
        ("missing", f"{whole.missing:,}", "training samples that no client has"),
        ("empty", f"{whole.empty:,}", "clients without samples"),
    ]
    return "".join(f"<div><b>{value}</b><span>{name}</span><small>{text}</small></div>" for name, value, text in tiles)


def _picture(partition: Partition, labels: np.ndarray, classes: Sequence[str], each: ClientFigures) -> str:
    """A heat map, a line a client and a column a class, with the sizes as bars beside it."""
    many = len(partition) > MOST_ROWS
    share, size = binned(each, labels[partition.indices], len(classes), MOST_ROWS)
    lines = len(size)
    height = lines * min(18, max(2, 480 // lines))
    bars = "".join(f"M0 {i}h{100 * n / max(size.max(), 1):.1f}v1H0z" for i, n in enumerate(size))
    names = (
        "".join(f"<span>{escape(str(name))}</span>" for name in classes)
        if len(classes) <= 30
        else f"<i>{escape(str(classes[0]))}</i><i>{len(classes)} classes</i><i>{escape(str(classes[-1]))}</i>"
    )
    ends = ("", "") if many else ("0", str(len(partition) - 1))
    told = (
        f"Clients in the order of their most frequent class; about {len(partition) / lines:.0f} make a line."
        if many
        else "A line for each client, from 0 downwards."
    )
    return f"""<figure class=map>
<div class=ends><span>{ends[0]}</span><span class=side>clients</span><span>{ends[1]}</span></div>
<img alt="Share of each class in each client's samples" style="height:{height}px" src="{_png(share)}">
<svg role=img aria-label="Samples of each client" style="height:{height}px" viewBox="0 0 100 {lines}"
 preserveAspectRatio=none><path d="{bars}"/></svg>
<div></div><div class="names{"" if len(classes) <= 30 else " few"}">{names}</div>
<div class=scale><i>0</i><i>{size.max():,.0f} samples</i></div>
<figcaption>{told} Left: share of each class, from none <span class=ramp></span>
to {100 * share.max():.0f} % (square-root scale). Right: number of samples.</figcaption></figure>"""


def _png(share: np.ndarray) -> str:
    """[lines, classes] in 0 ... 1 as a picture whose opacity is the square root of share / largest share."""
    alpha = np.sqrt(share / max(share.max(), 1e-12))
    pixels = np.empty((*share.shape, 4), np.uint8)
    pixels[..., :3], pixels[..., 3] = INK, np.round(255 * alpha)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + b64encode(file.getvalue()).decode()


def _quantiles(each: ClientFigures) -> str:
    filled = each.sizes > 0
    points = [0, 10, 25, 50, 75, 90, 100]
    rows = [
        ("samples", each.sizes, "{:,.0f}"),
        ("classes", each.classes, "{:.0f}"),
        ("largest class, share", each.largest, "{:.2f}"),
        ("distance", each.distance, "{:.2f}"),
    ]
    head = ("", "smallest", *(f"{p} %" for p in points[1:-1]), "largest")
    body = [
        (name, *(form.format(v) for v in np.percentile(values[filled], points, method="nearest")))
        for name, values, form in rows
    ]
    return _table(head, body) if filled.any() else "<p>No client has a sample.</p>"


def _class_table(partition: Partition, labels: np.ndarray, classes: Sequence[str]) -> str:
    pairs = np.unique(partition.owners * len(classes) + labels[partition.indices])
    holders = np.bincount(pairs % len(classes), minlength=len(classes))
    entries = np.bincount(labels[partition.indices], minlength=len(classes))
    head = ("class", "samples with clients", "clients that have it")
    return _table(head, ((str(c), f"{e:,}", f"{h:,}") for c, e, h in zip(classes, entries, holders, strict=True)))


def _client_table(partition: Partition, classes: Sequence[str], each: ClientFigures) -> str:
    head = ["client", "samples", "classes", "largest class", "its share", "distance"]
    if partition.features is not None:
        head += ["noise", "rotation"]
    rows = []
    for i in range(min(len(partition), MOST_LISTED)):
        row = [str(i), f"{each.sizes[i]:,}", str(each.classes[i])]
        row += (
            [str(classes[each.dominant[i]]), f"{each.largest[i]:.2f}", f"{each.distance[i]:.2f}"]
            if each.sizes[i]
            else ["–", "–", "–"]
        )
        if partition.features is not None:
            row += [f"{partition.features[i, 0]:.3f}", f"{partition.features[i, 1]:.1f}°"]
        rows.append(row)
    more = f"<p>The first {MOST_LISTED:,} of {len(partition):,}.</p>" if len(partition) > MOST_LISTED else ""
    return more + _table(head, rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


CSS = f"""
:root{{--ink:#1b1f24;--dim:#5b6470;--line:#dfe3e8;--back:#fff;--tile:#f5f7f9;--blue:rgb{INK}}}
@media(prefers-color-scheme:dark){{:root{{--ink:#e6e9ed;--dim:#98a2ae;--line:#333a42;--back:#14171a;--tile:#1d2126}}}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,sans-serif}}
main{{max-width:960px;margin:auto;padding:24px 16px 64px}}
h1{{font-size:24px;margin:0 0 8px}} h2{{font-size:17px;margin:32px 0 12px}}
code{{background:var(--tile);padding:1px 6px;border-radius:4px;font-size:13px;overflow-wrap:anywhere}}
.settings{{line-height:2;margin:0}} .note{{border-left:3px solid #d08700;padding-left:12px}}
.tiles{{display:grid;grid-template-columns:repeat(auto-fill,minmax(max(150px,22%),1fr));gap:8px;margin-top:16px}}
.tiles div{{background:var(--tile);border-radius:8px;padding:10px 12px;display:flex;flex-direction:column}}
.tiles b{{font-size:22px;line-height:1.2}} small,figcaption,.map i,.map span{{color:var(--dim);font-size:12px}}
.map{{display:grid;grid-template-columns:auto minmax(0,1fr) 22%;gap:4px 8px;margin:0}}
.map img,.map svg{{width:100%;display:block;border:1px solid var(--line);image-rendering:pixelated}}
.map svg{{border-width:0 0 0 1px}} path{{fill:var(--dim);fill-opacity:.5}}
.ends{{display:flex;flex-direction:column;justify-content:space-between;align-items:flex-end;line-height:1}}
.side{{writing-mode:vertical-rl;transform:rotate(180deg)}}
.names{{display:flex;justify-content:space-around}}
.names.few,.scale{{justify-content:space-between}} .scale{{display:flex;gap:8px}}
.names span{{flex:1 1 0;min-width:0;display:flex;align-items:center;line-height:1;writing-mode:vertical-rl}}
.map i{{font-style:normal}} figcaption{{grid-column:1/-1}}
.ramp{{display:inline-block;width:60px;height:9px;border:1px solid var(--line);
background:linear-gradient(to right,transparent,var(--blue))}}
.wide{{overflow-x:auto}} table{{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}}
th,td{{padding:4px 12px 4px 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}}
th:first-child,td:first-child{{text-align:left}} th{{color:var(--dim);font-weight:500}}
details{{margin-top:16px}} summary{{cursor:pointer;font-weight:600}}
"""
